//! A small client that sends requests and watches over TLS, with HTTP/1.1 or HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nodelb_apiserver::{Certificate, Cluster};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Time limit of every step.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    token: Option<String>,
}

/// A body that is read line by line.
pub(crate) struct Lines {
    body: Incoming,
    read: Vec<u8>,
}

impl Client {
    /// A client with all permissions.
    pub(crate) fn admin(cluster: &Cluster, address: SocketAddr) -> Self {
        Self::new(cluster, address, Some(&cluster.certificate("admin", &["system:masters"]).unwrap()))
    }

    pub(crate) fn new(cluster: &Cluster, address: SocketAddr, certificate: Option<&Certificate>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(cluster.ca_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let tls = match certificate {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
                builder
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap())
                    .unwrap()
            }
        };
        Self { address, tls: Arc::new(tls), token: None }
    }

    pub(crate) fn token(mut self, token: &str) -> Self {
        self.token = Some(token.into());
        self
    }

    pub(crate) fn http2(mut self) -> Self {
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        self.tls = Arc::new(tls);
        self
    }

    /// Sends a request over a new connection and returns the response or any error.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        let sent = async {
            let stream = TcpStream::connect(self.address).await.map_err(|error| error.to_string())?;
            let name = ServerName::try_from("kubernetes").unwrap();
            let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await;
            let stream = stream.map_err(|error| error.to_string())?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let stream = TokioIo::new(stream);
            let response = if is_http2 {
                let (mut sender, connection) =
                    http2::handshake(TokioExecutor::new(), stream).await.map_err(|it| it.to_string())?;
                tokio::spawn(connection);
                sender.send_request(request).await
            } else {
                let (mut sender, connection) = http1::handshake(stream).await.map_err(|it| it.to_string())?;
                tokio::spawn(connection);
                sender.send_request(request).await
            };
            response.map_err(|error| error.to_string())
        };
        tokio::time::timeout(TIMEOUT, sent).await.unwrap_or_else(|_| Err("no answer in time".into()))
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> hyper::http::request::Builder {
        let request =
            Request::builder().method(method).uri(format!("https://kubernetes{path}")).header("host", "kubernetes");
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    pub(crate) async fn open(&self, path: &str) -> Result<Response<Incoming>, String> {
        self.send(self.request("GET", path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        whole(self.open(path).await.unwrap()).await
    }

    pub(crate) async fn write(&self, method: &str, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let request = self.request(method, path).header("content-type", kind).header("user-agent", "tester/1.0 (x)");
        whole(self.send(request.body(Full::from(body.to_string())).unwrap()).await.unwrap()).await
    }

    /// Starts a watch, which must succeed.
    pub(crate) async fn watch(&self, path: &str) -> Lines {
        let response = self.open(path).await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        Lines { body: response.into_body(), read: Vec::new() }
    }
}

async fn whole(response: Response<Incoming>) -> (u16, Value) {
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into()))
}

impl Lines {
    /// The next line; `None` at the end of the stream, an error if the stream broke or the time is
    /// up.
    pub(crate) async fn line(&mut self, timeout: Duration) -> Result<Option<String>, String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.drain(..=end).collect();
                return Ok(Some(String::from_utf8(line).unwrap()));
            }
            let frame = tokio::time::timeout(timeout, self.body.frame()).await.or(Err("silent"))?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(format!("{error} after {:?}", String::from_utf8_lossy(&self.read))),
                Some(Ok(frame)) => self.read.extend_from_slice(frame.data_ref().unwrap()),
            }
        }
    }

    /// The next event as `TYPE name`, or `ERROR code`.
    pub(crate) async fn event(&mut self) -> String {
        let line = self.line(TIMEOUT).await.unwrap().unwrap_or_else(|| "the watch ended".into());
        let Ok(event) = serde_json::from_str::<Value>(&line) else { return line };
        let object = &event["object"];
        let what = match event["type"].as_str().unwrap() {
            "ERROR" => object["code"].to_string(),
            "BOOKMARK" => object["metadata"]["annotations"]["k8s.io/initial-events-end"].as_str().unwrap_or("").into(),
            _ => object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        };
        format!("{} {what}", event["type"].as_str().unwrap())
    }

    /// The next `count` events.
    pub(crate) async fn events(&mut self, count: usize) -> Vec<String> {
        let mut events = Vec::new();
        for _ in 0..count {
            events.push(self.event().await);
        }
        events
    }
}
