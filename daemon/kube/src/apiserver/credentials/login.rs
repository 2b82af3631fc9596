//! The identity that nodelb presents to an apiserver, and the certificate authorities that it trusts. Built from bytes
//! of any source. Pure. [`credentials`](crate::apiserver::credentials) provides the bytes and detects changes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::HeaderValue;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authorities::Authorities;

/// Bytes that must not appear in a log or panic message.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Some content with its origin, for example `/etc/kubernetes/pki/ca.crt` or `client-key-data of user x in ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<T> {
    pub content: T,
    pub origin: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// The certificate authorities that are trusted to sign an apiserver's certificate, in PEM.
    pub authority: Piece<Vec<u8>>,
    /// The client certificate with its chain, and its key, in PEM.
    pub certificate: Option<(Piece<Vec<u8>>, Piece<Secret>)>,
    /// A bearer token; surrounding white space is ignored.
    pub token: Option<Piece<Secret>>,
}

#[derive(Clone)]
pub struct Login {
    /// Trusted authorities, client certificate and stored TLS sessions.
    pub tls: Arc<ClientConfig>,
    /// `Bearer ...`, marked as sensitive.
    pub authorization: Option<HeaderValue>,
    /// A description for messages: `client certificate CN=system:kube-proxy (/path)`.
    pub identity: String,
    /// The user name in Kubernetes, if the certificate or token contains it.
    pub user: Option<String>,
    /// The groups in Kubernetes, if the certificate contains them.
    pub groups: Vec<String>,
    /// The identity of the cluster: its certificate authorities.
    pub authority: Authorities,
    /// The expiry of the client certificate or the token, whichever is earlier.
    pub expires: Option<SystemTime>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, authority, expires, .. } = self;
        let mut login = f.debug_struct("Login");
        login.field("identity", identity).field("authority", authority).field("expires", expires);
        login.finish_non_exhaustive()
    }
}

/// The reason why there is no login: the problem, its location and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(pub(in crate::apiserver) String);

impl Login {
    /// Creates a login. Takes over the TLS sessions of `before` if its certificates are the same.
    ///
    /// # Errors
    /// A certificate, a key or the token is invalid, or the key does not belong to the certificate.
    pub fn new(material: &Material, before: Option<(&Material, &Self)>) -> Result<Self, CredentialsError> {
        let Material { authority, certificate, token } = material;
        let authorities = certificates(authority)?;
        let (mut identity, mut user, mut groups, mut expires) = (Vec::new(), None, Vec::new(), None);
        let tls = match before {
            Some((old, login)) if old.authority == *authority && old.certificate == *certificate => {
                Arc::clone(&login.tls)
            }
            _ => Arc::new(configure(&authorities, authority, certificate.as_ref())?),
        };
        if let Some((certificate, _)) = certificate {
            let subject = Subject::new(certificate)?;
            identity.push(format!("the client certificate {} ({})", subject.text, certificate.origin));
            user = subject.user;
            groups = subject.groups;
            expires = Some(subject.expires);
        }
        let mut authorization = None;
        if let Some(token) = token {
            authorization = Some(bearer(token)?);
            let claims = Claims::new(token);
            let subject = claims.sub.as_ref().map(|sub| format!(" of {sub}")).unwrap_or_default();
            identity.push(format!("the token{subject} ({})", token.origin));
            let ends = claims.exp.and_then(|exp| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(exp)));
            expires = expires.into_iter().chain(ends).min();
            user = user.or(claims.sub);
        }
        let identity = if identity.is_empty() { "an anonymous client".into() } else { identity.join(" with ") };
        Ok(Self { tls, authorization, identity, user, groups, authority: Authorities::new(&authorities), expires })
    }

    /// [`Self::identity`], with a note if it has expired.
    pub fn described(&self, now: SystemTime) -> String {
        let has_expired = self.expires.is_some_and(|expires| expires <= now);
        format!("{}{}", self.identity, if has_expired { ", which has expired" } else { "" })
    }
}

/// The message about a key that the TLS library does not support.
pub(in crate::apiserver) const NO_P521: &str = "P-521 is not supported (RSA, P-256, P-384 and Ed25519 are)";

/// The object identifier of the curve, secp521r1, in DER.
const P521: [u8; 7] = [0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

/// Whether a certificate, a key or a key algorithm uses the curve P-521.
pub(in crate::apiserver) fn is_p521(der: &[u8]) -> bool {
    der.windows(P521.len()).any(|bytes| bytes == P521)
}

pub(super) fn authority(pem: &Piece<Vec<u8>>) -> Result<Authorities, CredentialsError> {
    certificates(pem).map(|authorities| Authorities::new(&authorities))
}

fn certificates(pem: &Piece<Vec<u8>>) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let Piece { content, origin } = pem;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
    let read = read.map_err(|error| CredentialsError(format!("{origin} is not PEM: {error}")))?;
    if read.is_empty() {
        Err(CredentialsError(format!("{origin} holds no certificate (PEM, BEGIN CERTIFICATE)")))
    } else {
        Ok(read)
    }
}

fn configure(
    authorities: &[CertificateDer<'static>],
    origin: &Piece<Vec<u8>>,
    certificate: Option<&(Piece<Vec<u8>>, Piece<Secret>)>,
) -> Result<ClientConfig, CredentialsError> {
    if authorities.iter().all(|der| is_p521(der)) {
        return Err(CredentialsError(format!("{NO_P521}: {} holds only authorities with such a key", origin.origin)));
    }
    let mut roots = RootCertStore::empty();
    // A bundle may contain unsupported certificates, but at least one must be supported.
    roots.add_parsable_certificates(authorities.iter().cloned());
    if roots.is_empty() {
        return Err(CredentialsError(format!(
            "{} holds no certificate that can be a certificate authority's",
            origin.origin
        )));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| CredentialsError(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots);
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let der = PrivateKeyDer::from_pem_slice(&key.content.0)
                .ok()
                .ok_or_else(|| CredentialsError(format!("{} holds no private key (PEM, unencrypted)", key.origin)))?;
            if is_p521(der.secret_der()) || chain.first().is_some_and(|der| is_p521(der)) {
                return Err(CredentialsError(format!("{NO_P521}: the key {} is of that kind", key.origin)));
            }
            builder.with_client_auth_cert(chain, der).map_err(|error| {
                CredentialsError(format!(
                    "the key {} does not go with the certificate {}: {error}",
                    key.origin, certificate.origin
                ))
            })?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn bearer(token: &Piece<Secret>) -> Result<HeaderValue, CredentialsError> {
    let Piece { content, origin } = token;
    let bytes = content.0.trim_ascii();
    if bytes.is_empty() {
        return Err(CredentialsError(format!("{origin} is empty: a token is expected")));
    }
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", bytes].concat()).ok().ok_or_else(|| {
        CredentialsError(format!("{origin} is no token: it holds control characters or several lines"))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

struct Subject {
    text: String,
    user: Option<String>,
    groups: Vec<String>,
    expires: SystemTime,
}

impl Subject {
    fn new(certificate: &Piece<Vec<u8>>) -> Result<Self, CredentialsError> {
        let chain = certificates(certificate)?;
        let unreadable = || CredentialsError(format!("{} begins with no X.509 certificate", certificate.origin));
        let first = chain.first().ok_or_else(unreadable)?;
        let (_, parsed) = X509Certificate::from_der(first).ok().ok_or_else(unreadable)?;
        let user = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok()).map(str::to_owned);
        let groups = parsed.subject().iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned);
        let groups = groups.collect();
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let expires =
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Self { text: parsed.subject().to_string(), user, groups, expires })
    }
}

/// The claims of a token, if it is a JWT. Not verified; only for messages.
#[derive(Default, Deserialize)]
struct Claims {
    sub: Option<String>,
    exp: Option<u64>,
}

impl Claims {
    fn new(token: &Piece<Secret>) -> Self {
        let mut parts = token.content.0.trim_ascii().split(|byte| *byte == b'.');
        let payload = parts.nth(1).and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok());
        payload.and_then(|payload| serde_json::from_slice(&payload).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "tests/login.rs"]
pub(crate) mod tests;
