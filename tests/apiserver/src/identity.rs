//! Certificates: a CA, server certificates and client certificates. Each cluster creates its own.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName as Subject, RootCertStore, ServerConfig, SignatureScheme};

use crate::access::User;

/// A certificate authority that can also verify its own certificates.
#[derive(Clone)]
pub struct Identity {
    ca_pem: String,
    issuer: Arc<Issuer<'static, KeyPair>>,
    ca: CertificateDer<'static>,
    verifier: Arc<dyn ClientCertVerifier>,
    provider: Arc<CryptoProvider>,
}

/// A certificate with its private key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Creates a CA.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = names("kubernetes", &[]);
        let certificate = params.self_signed(&key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build()?;
        Ok(Self {
            ca_pem: certificate.pem(),
            ca: certificate.der().clone(),
            issuer: Arc::new(Issuer::new(params, key)),
            verifier,
            provider,
        })
    }

    /// The CA certificate, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Issues a client certificate.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn client(&self, user: &str, groups: &[&str]) -> anyhow::Result<Certificate> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = names(user, groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Certificate { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// The TLS configuration of a replica with these names and addresses. Client certificates are optional and verified
    /// only by [`Self::user`], as an apiserver does: a wrong one results in 401, not in a failed handshake.
    ///
    /// # Errors
    /// A name is not valid in a certificate.
    pub fn server(&self, names: &[String], alpn: &[&str]) -> anyhow::Result<Arc<ServerConfig>> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = self::names("kube-apiserver", &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.ca.clone()];
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(Lenient(self.verifier.clone())))
            .with_single_cert(chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// The user that a client certificate names, if this CA has issued it and it is valid now.
    pub fn user(&self, chain: &[CertificateDer<'_>]) -> Option<User> {
        let (end_entity, intermediates) = chain.split_first()?;
        self.verifier.verify_client_cert(end_entity, intermediates, UnixTime::now()).ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(end_entity).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|group| Some(group.as_str().ok()?.to_owned())).collect();
        Some(User { name, groups })
    }
}

fn names(common: &str, organisations: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    for organisation in organisations {
        name.push(DnType::OrganizationName, *organisation);
    }
    name
}

/// Verifies only that the client has the private key of its certificate.
#[derive(Debug)]
struct Lenient(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Lenient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[Subject] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
