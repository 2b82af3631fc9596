//! Tests over TLS on loopback, with a small hyper server that each test configures.

#[path = "link/server.rs"]
pub(in crate::apiserver) mod server;

use http_body_util::BodyExt;
use hyper::header::CONTENT_TYPE;
use rcgen::date_time_ymd;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;

use self::server::{SEEN, Served, Serving, stream, whole};
use super::*;
use crate::apiserver::connection::connect::ConnectTimeouts;
use crate::apiserver::credentials::login::tests::{Authority, p521, piece, token_login, trusting};
use crate::apiserver::credentials::login::{Material, Secret};

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const SHORT: Duration = Duration::from_millis(100);

pub(in crate::apiserver) fn connector() -> Connector {
    connector_with(|_| {})
}

/// A connector with other timeouts than [`TIMEOUT`].
fn connector_with(change: impl FnOnce(&mut ConnectTimeouts)) -> Connector {
    let mut timeouts = ConnectTimeouts {
        ping_after: TIMEOUT,
        ping_answer: TIMEOUT,
        connect: TIMEOUT,
        handshake: TIMEOUT,
        refusal: TIMEOUT,
        user_timeout: TIMEOUT,
        ..ConnectTimeouts::default()
    };
    change(&mut timeouts);
    Connector::new(Arc::new(|_| Ok(())), timeouts, None).unwrap()
}

pub(in crate::apiserver) fn server_at(at: SocketAddr) -> Server {
    Server { address: at.into(), tls_server_name: None }
}

pub(in crate::apiserver) async fn open(serving: &Serving, authority: &Authority) -> Arc<Link> {
    let at = serving.at;
    Link::open(&connector(), at, &server_at(at), &token_login(authority, "abc")).await.unwrap()
}

fn write(method: &str, path: &str, body: &'static str) -> Request<Sent> {
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
    request.body(body.into()).unwrap()
}

async fn text(answer: Response<Body>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_statement_arrives_with_its_body_once() {
    for protocol in ["h2", "http/1.1"] {
        let authority = Authority::new();
        let (arrived, reported) = std::sync::mpsc::channel();
        let serving = Serving::start(&authority, &[protocol], move |request| {
            let header = |name| request.headers().get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
            let head = format!("{} {}", request.method(), header(CONTENT_TYPE));
            let (length, uri) = (hyper::body::Body::size_hint(request.body()).exact(), request.uri().path().to_owned());
            arrived.send((head, uri, length)).unwrap();
            whole(201, "{}")
        });
        let link = open(&serving, &authority).await;
        let path = "/api/v1/namespaces/shop/events";
        let request_body = write("POST", path, "{\"kind\":\"Event\"}");
        assert_eq!(text(link.send(request_body, TIMEOUT).await.unwrap()).await, "{}");
        let (head, uri, length) = reported.recv().unwrap();
        assert_eq!((head.as_str(), uri.as_str(), length), ("POST application/json", path, Some(16)));
        link.get("/api", TIMEOUT).await.unwrap();
        let (head, _, length) = reported.recv().unwrap();
        assert_eq!((head.as_str(), length), ("GET -", Some(0)), "{protocol}: a question has no body");
        assert!(reported.try_recv().is_err(), "each is sent once");
    }
}

#[tokio::test]
async fn a_request_carries_what_an_apiserver_wants_to_know() {
    for protocol in ["h2", "http/1.1"] {
        let authority = Authority::new();
        let serving = Serving::start(&authority, &[protocol], |request| {
            let header =
                |name: &str| request.headers().get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
            let host = request.uri().authority().map_or_else(|| header("host"), ToString::to_string);
            let reported = [host, header("authorization"), header("accept"), header("user-agent")].join(" ");
            whole(200, &format!("{} {reported}", request.uri().path_and_query().unwrap()))
        });
        let link = open(&serving, &authority).await;
        assert_eq!(link.protocol(), protocol);
        let expected = format!("/api?a=b {} Bearer abc application/json {AGENT}", serving.at);
        for _ in 0..3 {
            assert_eq!(text(link.get("/api?a=b", TIMEOUT).await.unwrap()).await, expected);
        }
        // HTTP/2 needs one connection in total, HTTP/1.1 one per request; `open` has opened the first one.
        assert_eq!(serving.connections(), if protocol == "h2" { 1 } else { 3 });
    }
}

#[tokio::test]
async fn a_server_signed_by_p521_is_named() {
    for signed in p521::SIGNED {
        let chain = vec![CertificateDer::from_pem_slice(signed.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(p521::SIGNED_KEY.as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let serving = Serving::with(config, |_| Served::Never);
        // A second authority is necessary, because a login needs one that the TLS library supports.
        let login = Login::new(&trusting(&format!("{}{}", p521::AUTHORITY, Authority::new().pem())), None).unwrap();
        let opened = Link::open(&connector(), serving.at, &server_at(serving.at), &Arc::new(login)).await;
        let Err(LinkError::Certificate(why)) = opened else { panic!("{opened:?}") };
        assert!(why.contains("P-521 is not supported") && why.contains(&serving.at.to_string()), "{why}");
    }
}

/// kubeadm always names the authority "kubernetes", whatever kind of key it has.
#[tokio::test]
async fn another_clusters_authority_of_the_same_name_and_another_kind_is_reported_as_such() {
    let serving = Serving::start(&Authority::new(), &["h2"], |_| whole(200, ""));
    let login = Login::new(&trusting(include_str!("../../credentials/tests/login/rsa-ca.pem")), None).unwrap();
    let opened = Link::open(&connector(), serving.at, &server_at(serving.at), &Arc::new(login)).await;
    let Err(LinkError::Certificate(why)) = opened else { panic!("{opened:?}") };
    assert!(why.contains("is not signed by the configured certificate authority"), "{why}");
}

#[tokio::test]
async fn a_refusal_tells_what_the_server_said() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |request| {
        let code = request.uri().path().rsplit('/').next().unwrap().parse().unwrap();
        let body = format!(r#"{{"kind": "Status", "message": "this is {code}", "code": {code}}}"#);
        let mut answer = whole(code, &body);
        answer.headers_mut().insert("retry-after", "7".parse().unwrap());
        answer
    });
    let link = open(&serving, &authority).await;
    let at = serving.at;
    let reported = async |code: u16| {
        link.get(&format!("/apis/discovery.k8s.io/v1/endpointslices/{code}"), TIMEOUT).await.unwrap_err()
    };
    assert_eq!(
        reported(401).await.to_string(),
        format!("401 Unauthorized: {at} does not accept the token (token): this is 401")
    );
    let forbidden = reported(403).await;
    assert!(matches!(forbidden, LinkError::Forbidden(_)));
    assert!(
        forbidden
            .to_string()
            .ends_with("this is 403; check with `kubectl auth can-i get endpointslices.discovery.k8s.io/403`"),
        "{forbidden}"
    );
    assert_eq!(reported(410).await, LinkError::Gone("this is 410".into()));
    for code in [429, 500, 503] {
        let retry_after = Some(Duration::from_secs(7));
        assert_eq!(reported(code).await, LinkError::Busy { code, message: format!("this is {code}"), retry_after });
    }
    assert_eq!(reported(404).await, LinkError::Status { code: 404, message: "this is 404".into() });
}

#[tokio::test]
async fn cutting_ends_every_body_and_every_wait_at_once() {
    for protocol in ["h2", "http/1.1"] {
        let authority = Authority::new();
        let serving = Serving::start(&authority, &[protocol], |_| stream("first"));
        let link = open(&serving, &authority).await;
        let mut bodies = [
            link.get("/one", TIMEOUT).await.unwrap().into_body(),
            link.get("/two", TIMEOUT).await.unwrap().into_body(),
        ];
        for body in &mut bodies {
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(first, "first");
        }
        let [one, two] = &mut bodies;
        let readers = async { tokio::join!(one.frame(), two.frame(), link.ended()) };
        let cut = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            link.cut();
        };
        // Nothing else ends them: the server says nothing more.
        let ends = async { tokio::join!(readers, cut) };
        let ((one, two, ended), ()) = tokio::time::timeout(TIMEOUT / 2, ends).await.unwrap();
        for ended in [one.unwrap().unwrap_err(), two.unwrap().unwrap_err(), ended] {
            assert_eq!(ended, LinkError::Broken("closed by nodelb".into()), "{protocol}");
        }
        assert!(matches!(link.get("/three", TIMEOUT).await, Err(LinkError::Broken(_))));
    }
}

/// kube-apiserver does this with `--goaway-chance`, and before it stops.
#[tokio::test]
async fn a_connection_that_the_server_drains_goes_on_and_is_followed_by_another() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |request| match request.uri().path() {
        "/watch" => stream("first"),
        _ => whole(200, "yes"),
    });
    let link = open(&serving, &authority).await;
    let mut body = link.get("/watch", TIMEOUT).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    for generation in 1..=3 {
        serving.go_away();
        // First immediately, when the link may not know about it yet, then later.
        for pause in [0, 50] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            link.get("/another", TIMEOUT).await.unwrap();
            link.send(write("POST", "/", ""), TIMEOUT).await.unwrap();
        }
        assert_eq!((link.generation(), serving.connections()), (generation, 1 + usize::try_from(generation).unwrap()));
    }
    let more = tokio::time::timeout(Duration::from_millis(50), body.frame()).await;
    assert!(more.is_err(), "what ran over the first connection goes on: {more:?}");
    let ended = tokio::time::timeout(Duration::from_millis(50), link.ended()).await;
    assert!(ended.is_err(), "{ended:?}");
    link.cut();
    assert!(body.frame().await.unwrap().is_err(), "the first connection is still the link's");
}

/// hyper reported the refused request before it closed the sender, and the request failed; or the request was added to
/// hyper's queue while the other end of the queue was dropped, and stayed there until its timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_during_a_drain_is_repeated() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |_| whole(200, "yes"));
    let link = open(&serving, &authority).await;
    for request in 0..300 {
        let (got, ()) = tokio::join!(link.get("/", TIMEOUT), async { serving.go_away() });
        assert!(got.is_ok(), "request {request}: {got:?}");
    }
}

#[tokio::test]
async fn a_server_that_drains_its_connections_and_is_gone_ends_the_link() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |_| whole(200, "yes"));
    let link = open(&serving, &authority).await;
    link.get("/", TIMEOUT).await.unwrap();
    serving.go_away();
    drop(serving);
    let ended = tokio::time::timeout(TIMEOUT, link.ended()).await;
    assert!(matches!(ended, Ok(LinkError::Broken(_))), "{ended:?}");
    assert!(link.get("/", TIMEOUT).await.is_err());
}

#[tokio::test]
async fn dropping_a_link_cuts_it() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |_| stream("first"));
    let link = open(&serving, &authority).await;
    let mut body = link.get("/", TIMEOUT).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    drop(link);
    assert!(body.frame().await.unwrap().is_err());
}

#[tokio::test]
async fn a_frozen_server_is_noticed_though_its_kernel_answers() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |_| stream("first"));
    let link = open(&serving, &authority).await;
    let mut body = link.get("/", TIMEOUT).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    let thaw = serving.freeze();
    // Nothing more arrives, so that the clock goes on to the ping, and to the end of its time.
    tokio::time::pause();
    body.frame().await.unwrap().unwrap_err();
    assert!(link.ended().await.to_string().contains("keep-alive timed out"), "{}", link.ended().await);
    drop(thaw);
}

#[tokio::test]
async fn a_server_that_goes_away_ends_the_link() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |_| stream("first"));
    let link = open(&serving, &authority).await;
    let mut body = link.get("/", TIMEOUT).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    drop(serving);
    assert!(body.frame().await.unwrap().is_err());
    assert!(matches!(link.ended().await, LinkError::Broken(_)));
    assert!(link.get("/", TIMEOUT).await.is_err());
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_given_up() {
    for protocol in ["h2", "http/1.1"] {
        let authority = Authority::new();
        let serving = Serving::begin(&authority, &[protocol], |_| Served::Never);
        let link = open(&serving, &authority).await;
        let error = link.get("/api", SHORT).await.unwrap_err();
        let expected = format!("{} has not answered GET /api within 100ms", serving.at);
        assert_eq!(error, LinkError::TimedOut(expected));
    }
}

#[tokio::test]
async fn certificates_that_do_not_fit_say_what_to_do() {
    let (authority, other) = (Authority::new(), Authority::new());
    let refused = async |serving: &Serving, name: Option<&str>| {
        let server = Server { address: serving.at.into(), tls_server_name: name.map(Into::into) };
        Link::open(&connector(), serving.at, &server, &token_login(&authority, "abc")).await.unwrap_err().to_string()
    };
    let at_other = Serving::start(&other, &["h2"], |_| whole(200, ""));
    let reported = refused(&at_other, None).await;
    assert!(
        reported.contains(&at_other.at.to_string()) && reported.contains("another cluster's apiserver"),
        "{reported}"
    );

    let elsewhere = Authority::params(&["kubernetes.default.svc", "10.96.0.1"]);
    let named = Serving::with(authority.server(&elsewhere, &["h2"]), |_| Served::Answer(whole(200, "")));
    for name in [None, Some("api.example.com")] {
        let reported = refused(&named, name).await;
        let expected = format!("does not name {}, but kubernetes.default.svc, 10.96.0.1;", name.unwrap_or("127.0.0.1"));
        assert!(reported.contains(&expected) && reported.contains("set tls-server-name"), "{reported}");
    }
    for name in ["kubernetes.default.svc", "10.96.0.1"] {
        let server = Server { address: named.at.into(), tls_server_name: Some(name.into()) };
        Link::open(&connector(), named.at, &server, &token_login(&authority, "abc")).await.unwrap();
    }

    let mut params = Authority::params(&["127.0.0.1"]);
    params.not_after = date_time_ymd(2020, 1, 1);
    let expired = Serving::with(authority.server(&params, &["h2"]), |_| Served::Answer(whole(200, "")));
    let reported = refused(&expired, None).await;
    assert!(reported.contains("has expired") && reported.contains("clock"), "{reported}");
}

#[tokio::test]
async fn a_rotated_token_needs_no_new_connection() {
    let authority = Authority::new();
    let serving =
        Serving::start(&authority, &["h2"], |request| whole(200, request.headers()["authorization"].to_str().unwrap()));
    let link = open(&serving, &authority).await;
    let mut next = (*link.login()).clone();
    next.authorization = Some("Bearer next".parse().unwrap());
    assert!(link.renew(&Arc::new(next)));
    assert_eq!(text(link.get("/", TIMEOUT).await.unwrap()).await, "Bearer next");
    assert!(!link.renew(&token_login(&authority, "third")), "other certificates");
    assert_eq!(serving.connections(), 1);
}

#[tokio::test]
async fn a_large_list_arrives_whole() {
    for protocol in ["h2", "http/1.1"] {
        let authority = Authority::new();
        let serving = Serving::start(&authority, &[protocol], |_| whole(200, &"x".repeat(20_000_000)));
        let link = open(&serving, &authority).await;
        assert_eq!(text(link.get("/", TIMEOUT).await.unwrap()).await.len(), 20_000_000);
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown_and_sessions_are_resumed() {
    let authority = Authority::new();
    let serving =
        Serving::start(&authority, &["http/1.1"], |request| whole(200, request.headers()[SEEN].to_str().unwrap()));
    let (certificate, key) = authority.client("system:kube-proxy", "nodes");
    let material = Material {
        authority: piece(authority.pem().into(), "ca.crt"),
        certificate: Some((piece(certificate.into(), "crt"), piece(Secret(key.into()), "key"))),
        token: None,
    };
    let login = Arc::new(Login::new(&material, None).unwrap());
    let link = Link::open(&connector(), serving.at, &server_at(serving.at), &login).await.unwrap();
    for handshake in ["Full", "Resumed"] {
        let expected = format!("1 client certificates, {handshake} handshake");
        assert_eq!(text(link.get("/", TIMEOUT).await.unwrap()).await, expected);
    }
}

#[tokio::test]
async fn a_refusal_whose_explanation_does_not_end_is_reported_in_time() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |request| {
        let first = if request.uri().path() == "/long" { LONG } else { "x" };
        let mut answer = stream(first);
        *answer.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
        answer
    });
    let login = token_login(&authority, "abc");
    for (path, refusal, expected) in
        [("/", SHORT, "the error message did not arrive"), ("/long", TIMEOUT, "the error message is too long")]
    {
        let connector = connector_with(|timeouts| timeouts.refusal = refusal);
        let link = Link::open(&connector, serving.at, &server_at(serving.at), &login).await.unwrap();
        let error = link.get(path, TIMEOUT).await.unwrap_err();
        assert_eq!(error, LinkError::Busy { code: 503, message: expected.into(), retry_after: None });
    }
}

const LONG: &str = match std::str::from_utf8(&[b'x'; 100_000]) {
    Ok(text) => text,
    Err(_) => "",
};

#[tokio::test]
async fn a_server_without_tls_is_distinguished_from_a_silent_one() {
    let authority = Authority::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let login = token_login(&authority, "abc");
    let (connector, server) = (connector(), server_at(at));
    for (greeting, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], format!("{at} does not speak TLS")),
        (b"", format!("cannot connect: {at} ended the connection during the TLS handshake")),
    ] {
        let accepting = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 64];
            tokio::io::AsyncReadExt::read(&mut stream, &mut hello).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, greeting).await.unwrap();
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
            // Waits until the peer has read the data: closing a socket with unread bytes resets the connection.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        };
        let (opened, ()) = tokio::join!(Link::open(&connector, at, &server, &login), accepting);
        let error = opened.unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{error}");
    }
    let connector = connector_with(|timeouts| timeouts.handshake = SHORT);
    let error = Link::open(&connector, at, &server, &login).await.unwrap_err();
    assert!(matches!(&error, LinkError::TimedOut(what) if what.starts_with(&format!("{at} accepted"))), "{error}");
}

#[tokio::test]
async fn a_link_goes_through_a_proxy() {
    let authority = Authority::new();
    let serving = Serving::start(&authority, &["h2"], |_| whole(200, "through"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let at = serving.at;
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut question = vec![0; 1024];
        let length = tokio::io::AsyncReadExt::read(&mut near, &mut question).await.unwrap();
        assert!(question[..length].starts_with(format!("CONNECT {at} ").as_bytes()));
        let mut far = TcpStream::connect(at).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut near, b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let connector = Connector::new(Arc::new(|_| Ok(())), connector().timeouts, Some(&proxy)).unwrap();
    let link = Link::open(&connector, at, &server_at(at), &token_login(&authority, "abc")).await.unwrap();
    assert_eq!(text(link.get("/", TIMEOUT).await.unwrap()).await, "through");
}
