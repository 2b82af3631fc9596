//! Certificates signed by a cluster's authority, and the logins that result from them.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use super::*;

/// A certificate authority that signs all other certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A client certificate and its key, in PEM.
    pub(crate) fn client(&self, name: &str, group: &str) -> (String, String) {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, group);
        subject.push(DnType::CommonName, name);
        params.distinguished_name = subject;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn params(names: &[&str]) -> CertificateParams {
        CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    /// The configuration of a server with this certificate. Clients may present a certificate of the same authority.
    pub(crate) fn server(&self, params: &CertificateParams, protocols: &[&str]) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let provider = Arc::new(default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.allow_unauthenticated().build().unwrap())
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    }
}

pub(crate) fn piece<T>(content: T, origin: &str) -> Piece<T> {
    Piece { content, origin: origin.into() }
}

pub(crate) fn token_login(authority: &Authority, token: &str) -> Arc<Login> {
    let material = Material {
        authority: piece(authority.pem().into(), "ca.crt"),
        certificate: None,
        token: Some(piece(Secret(token.into()), "token")),
    };
    Arc::new(Login::new(&material, None).unwrap())
}

fn material(authority: &Authority) -> Material {
    trusting(&authority.pem())
}

/// The material of an anonymous client that trusts this authority.
pub(crate) fn trusting(authority: &str) -> Material {
    Material { authority: piece(authority.into(), "ca.crt"), certificate: None, token: None }
}

fn refused(material: &Material) -> String {
    Login::new(material, None).unwrap_err().to_string()
}

#[test]
fn a_login_tells_who_it_is_without_its_secrets() {
    let authority = Authority::new();
    let (certificate, key) = authority.client("system:kube-proxy", "system:nodes");
    let claims = URL_SAFE_NO_PAD.encode(r#"{"sub":"system:serviceaccount:kube-system:nodelb","exp":1700000000}"#);
    let mut material = material(&authority);
    assert_eq!(Login::new(&material, None).unwrap().identity, "an anonymous client");
    material.token = Some(piece(Secret(format!(" x.{claims}.y\n").into()), "/token"));
    let login = Login::new(&material, None).unwrap();
    assert_eq!(login.identity, "the token of system:serviceaccount:kube-system:nodelb (/token)");
    assert_eq!(login.user.as_deref(), Some("system:serviceaccount:kube-system:nodelb"));
    assert_eq!(login.expires, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
    let (before, after) = (Duration::from_secs(1_600_000_000), Duration::from_secs(1_800_000_000));
    assert_eq!(login.described(SystemTime::UNIX_EPOCH + before), login.identity);
    assert!(login.described(SystemTime::UNIX_EPOCH + after).ends_with(", which has expired"));
    assert_eq!(login.authorization.as_ref().unwrap(), &format!("Bearer x.{claims}.y"));
    assert!(!format!("{login:?}{material:?}").contains(&claims));

    material.certificate = Some((piece(certificate.into(), "/crt"), piece(Secret(key.into()), "/key")));
    let login = Login::new(&material, None).unwrap();
    assert_eq!(
        login.identity,
        "the client certificate O=system:nodes, CN=system:kube-proxy (/crt) with the token of \
         system:serviceaccount:kube-system:nodelb (/token)"
    );
    assert_eq!(login.user.as_deref(), Some("system:kube-proxy"), "Kubernetes looks at the certificate first");
}

#[test]
fn what_is_no_credential_is_named() {
    let authority = Authority::new();
    let (certificate, key) = authority.client("a", "b");
    let (_, other_key) = authority.client("a", "b");
    let good = material(&authority);
    let with_authority = |text: &str| Material { authority: piece(text.into(), "ca.crt"), ..good.clone() };
    assert!(refused(&with_authority("")).contains("ca.crt holds no certificate"));
    assert!(refused(&with_authority(&key)).contains("ca.crt holds no certificate"));
    let cut = certificate.replace("-----END CERTIFICATE-----", "");
    assert!(refused(&with_authority(&cut)).contains("ca.crt is not PEM"), "{}", refused(&with_authority(&cut)));
    let with = |certificate: &str, key: &str| Material {
        certificate: Some((piece(certificate.into(), "/crt"), piece(Secret(key.into()), "/key"))),
        ..good.clone()
    };
    assert!(Login::new(&with(&certificate, &key), None).is_ok());
    assert!(refused(&with(&certificate, &other_key)).contains("the key /key does not go with the certificate /crt"));
    assert!(refused(&with(&certificate, "x")).contains("/key holds no private key"));
    assert!(refused(&with("x", &key)).contains("/crt holds no certificate"));
    for token in ["", " \n", "a\nb", "a\u{0}"] {
        let material = Material { token: Some(piece(Secret(token.into()), "/token")), ..good.clone() };
        assert!(refused(&material).starts_with("/token is "), "{token:?}");
    }
}

/// Keys of the curve P-521, generated with openssl, because the TLS library cannot generate them.
pub(crate) mod p521 {
    pub(crate) const AUTHORITY: &str = include_str!("login/p521-ca.pem");
    pub(crate) const KEY: &str = include_str!("login/p521.key.pem");
    pub(crate) const SEC1_KEY: &str = include_str!("login/p521-sec1.key.pem");
    /// Server certificates for 127.0.0.1 with a key of another kind, signed by the authority.
    pub(crate) const SIGNED: [&str; 2] =
        [include_str!("login/signed-by-p521-sha256.pem"), include_str!("login/signed-by-p521-sha512.pem")];
    pub(crate) const SIGNED_KEY: &str = include_str!("login/signed-by-p521.key.pem");
}

#[test]
fn p521_is_named_as_not_supported() {
    let authority = Authority::new();
    let reported = refused(&trusting(p521::AUTHORITY));
    assert!(reported.starts_with("P-521 is not supported") && reported.contains("ca.crt"), "{reported}");
    let both = trusting(&format!("{}{}", p521::AUTHORITY, authority.pem()));
    assert!(Login::new(&both, None).is_ok(), "the other one may be the server's");
    for key in [p521::KEY, p521::SEC1_KEY] {
        let pair = (piece(p521::AUTHORITY.into(), "/crt"), piece(Secret(key.into()), "/key"));
        let reported = refused(&Material { certificate: Some(pair), ..material(&authority) });
        assert!(reported.starts_with("P-521 is not supported") && reported.contains("/key"), "{reported}");
    }
}

#[test]
fn a_cluster_is_known_by_its_authorities() {
    let (one, two) = (Authority::new(), Authority::new());
    let of = |pem: String| Login::new(&trusting(&pem), None).unwrap().authority;
    assert_eq!(of(one.pem() + &two.pem()), of(two.pem() + &one.pem() + &two.pem()));
    assert_ne!(of(one.pem()), of(two.pem()));
    assert_eq!(of(one.pem()).bundle().len(), 64);
}
