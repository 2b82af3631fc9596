use std::time::Duration;

use tokio::net::TcpListener;

use super::*;

#[test]
fn only_plain_proxies_are_taken() {
    for url in ["http://192.0.2.1:3128", "http://proxy.example.com:3128/", "http://[2001:db8::1]:3128"] {
        assert_eq!(url.parse::<Proxy>().unwrap().to_string(), url.trim_end_matches('/'));
    }
    for url in ["", "proxy:3128", "https://proxy:3128", "http://proxy", "http://user:secret@proxy:3128", "http://a:1/b"]
    {
        assert_eq!(url.parse::<Proxy>(), Err(ProxyError), "{url}");
    }
}

/// The result that a client gets from a proxy with this response, and the request that the proxy received.
async fn asked(answer: &'static str) -> (io::Result<String>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy: Proxy = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut question = vec![0; 4096];
        let length = stream.read(&mut question).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&question[..length]).into_owned()
    });
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut stream = TcpStream::connect(proxy.resolve(deadline).await.unwrap()).await.unwrap();
    let outcome = proxy.ask_for(&mut stream, "192.0.2.1:6443".parse().unwrap(), deadline).await;
    let mut rest = String::new();
    if outcome.is_ok() {
        stream.read_to_string(&mut rest).await.unwrap();
    }
    (outcome.map(|()| rest), serving.await.unwrap())
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel() {
    let (rest, question) = asked("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nTLS").await;
    assert_eq!(question, "CONNECT 192.0.2.1:6443 HTTP/1.1\r\nHost: 192.0.2.1:6443\r\n\r\n");
    assert_eq!(rest.unwrap(), "TLS", "nothing behind the head is swallowed");
    let (refused, _) = asked("HTTP/1.1 403 Forbidden\r\n\r\n").await;
    assert!(refused.unwrap_err().to_string().contains("`HTTP/1.1 403 Forbidden`"));
    for answer in ["SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 20\r\n\r\n", "HTTP/1.1 200"] {
        assert!(asked(answer).await.0.is_err(), "{answer}");
    }
}
