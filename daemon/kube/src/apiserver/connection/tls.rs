//! The TLS handshake with an apiserver, and error messages with a remedy. The [`Login`](crate::apiserver::credentials::login::Login) contains
//! the trusted certificate authorities and the client certificate.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::text::is_control;
use nodelb_host::clock::by;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::LinkError;
use crate::apiserver::address::{Host, Server};
use crate::apiserver::credentials::login::{NO_P521, is_p521};

/// The end of the object identifier ecdsa-with-SHA512.
const ECDSA_SHA512: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];

/// The maximum number of bytes of one read from the socket. rustls alone reads 4 KiB at a time.
const READ: usize = 32 << 10;

pub(super) type Stream = TlsStream<BufReader<TcpStream>>;

/// The maximum number of a certificate's names in a message.
const MAX_NAMES: usize = 12;

/// The name that the certificate must contain.
pub(super) fn server_name(server: &Server) -> Result<ServerName<'static>, LinkError> {
    let name = match (&server.tls_server_name, &server.address.host) {
        (Some(name), _) | (None, Host::Name(name)) => name,
        (None, Host::Ip(ip)) => return Ok(ServerName::IpAddress((*ip).into())),
    };
    ServerName::try_from(name.to_string()).ok().ok_or_else(|| {
        LinkError::Certificate(format!("`{name}` cannot be the name in a certificate; correct tls-server-name"))
    })
}

pub(super) async fn handshake(
    config: &Arc<ClientConfig>,
    (stream, at): (TcpStream, SocketAddr),
    name: &ServerName<'static>,
    timeout: Duration,
) -> Result<Stream, LinkError> {
    let stream = BufReader::with_capacity(READ, stream);
    let connecting = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
    match by(Instant::now() + timeout, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(explain(&error, at, name)),
        Err(_) => {
            Err(LinkError::TimedOut(format!("{at} accepted the connection, but no TLS handshake within {timeout:?}")))
        }
    }
}

fn explain(error: &io::Error, at: SocketAddr, name: &ServerName<'_>) -> LinkError {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return LinkError::Unreachable(format!("{at} ended the connection during the TLS handshake: {error}"));
    };
    LinkError::Certificate(match tls {
        rustls::Error::InvalidCertificate(reason) => refused_certificate(reason, at, name),
        rustls::Error::InvalidMessage(_) => format!("{at} does not speak TLS ({tls}): not an apiserver's secure port"),
        rustls::Error::AlertReceived(rustls::AlertDescription::HandshakeFailure) => format!(
            "{at} refuses the TLS handshake ({tls}): it finds nothing in common, as a server does whose key is of the curve \
             P-521: {NO_P521}; not connected"
        ),
        rustls::Error::AlertReceived(_) => format!("{at} refuses the TLS handshake ({tls}); not connected"),
        other => format!("{at}: the TLS handshake failed: {other}; not connected"),
    })
}

fn refused_certificate(reason: &CertificateError, at: SocketAddr, name: &ServerName<'_>) -> String {
    let name = name.to_str();
    match reason {
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { public_key_algorithm_id: key, .. }
            if is_p521(key) =>
        {
            format!("the certificate of {at} is signed with a key of the curve P-521: {NO_P521}; not connected")
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { signature_algorithm_id: signature, .. }
            if signature.ends_with(&ECDSA_SHA512) =>
        {
            format!(
                "the certificate of {at} is signed with ECDSA and SHA-512, as authorities do whose key is of the curve P-521: \
                 {NO_P521}; not connected"
            )
        }
        // The configured certificate authority has the same name but another kind of key: kubeadm names all of them
        // "kubernetes".
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
        | CertificateError::UnknownIssuer
        | CertificateError::BadSignature => format!(
            "the certificate of {at} is not signed by the configured certificate authority: it is another cluster's \
             apiserver, or the CA file is outdated; not connected"
        ),
        CertificateError::NotValidForName => {
            format!("the certificate of {at} does not name {name}; set tls-server-name")
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<_> = presented.iter().take(MAX_NAMES).map(|entry| bare(entry)).collect();
            let more = presented.len().saturating_sub(MAX_NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            match names.is_empty() {
                true => {
                    format!("the certificate of {at} has no subject alternative name; expected {name}; renew it")
                }
                false => format!(
                    "the certificate of {at} does not name {name}, but {}{more}; set tls-server-name to one of these if \
                     the server is the right one",
                    names.join(", ")
                ),
            }
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
            "the certificate of {at}, or its certificate authority's, has expired; renew it, or correct this node's clock ({reason})"
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate of {at} is not valid yet; correct this node's clock or the server's ({reason})")
        }
        other => format!("the certificate of {at} is refused: {other}; not connected"),
    }
}

/// Converts `DnsName("api")` to `api`.
fn bare(entry: &str) -> String {
    let inner = entry.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(entry);
    inner.trim_matches('"').chars().filter(|c| !is_control(*c)).take(100).collect()
}
