use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use hyper::Method;

use super::{At, CHECK, CHECK_EVERY, CHECK_TIME, Hanging, change, first, get, inquire};
use crate::exit::{Code, Failure};

/// Answers one connection with these bytes, and returns the request.
fn answering(bytes: &'static str) -> (At, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = At::Tcp(listener.local_addr().unwrap());
    let task = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).unwrap() == 0 {
                break;
            }
            asked.push(byte[0]);
        }
        stream.write_all(bytes.as_bytes()).unwrap();
        String::from_utf8(asked).unwrap()
    });
    (address, task)
}

/// Returns an address without a listener.
fn silent() -> At {
    At::Tcp(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

#[test]
fn asks_the_first_daemon_that_answers() {
    let (address, task) = answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nrows\n");
    assert_eq!(&get(&[silent(), address.clone()], "/frontends?output=text").unwrap()[..], b"rows\n");
    let asked = task.join().unwrap();
    assert!(asked.starts_with("GET /frontends?output=text HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains(&format!("host: {address}\r\n")), "{asked}");
}

#[test]
fn a_daemon_that_does_not_run_is_named_with_the_remedy() {
    let address = silent();
    let failure = get(std::slice::from_ref(&address), "/frontends").unwrap_err();
    assert_eq!(failure.code, Code::Unavailable);
    let message = failure.to_string();
    assert!(message.starts_with(&format!("cannot reach the nodelb daemon at {address} (")), "{message}");
    assert!(message.contains("refused") && message.contains("systemctl status nodelb"), "{message}");
}

/// `systemctl start` changes nothing for a unit that runs: the message about a daemon that hangs named nothing else.
#[test]
fn a_daemon_that_runs_is_to_be_restarted_and_another_one_to_be_started() {
    let of = |kind: io::ErrorKind| anyhow::Error::from(io::Error::from(kind));
    let remedy = |errors: [anyhow::Error; 2]| {
        let mut errors = errors.into_iter();
        let failure =
            first(&[silent(), silent()], |_| -> anyhow::Result<Result<(), Failure>> { Err(errors.next().unwrap()) });
        let message = failure.unwrap_err().to_string();
        let line = message.lines().find(|line| line.starts_with("Check: ")).unwrap();
        line.split_once("journalctl -u nodelb. ").unwrap().1.to_owned()
    };
    let absent = [of(io::ErrorKind::PermissionDenied), of(io::ErrorKind::ConnectionRefused)];
    assert_eq!(remedy(absent), "Start it: systemctl start nodelb.");
    for running in [Hanging.into(), of(io::ErrorKind::WouldBlock), anyhow::anyhow!("no answer in time")] {
        let errors = [of(io::ErrorKind::PermissionDenied), running];
        assert_eq!(remedy(errors), "Restart it: systemctl restart nodelb.");
    }
}

#[test]
fn a_change_names_its_method_and_its_refusals_have_codes() {
    let (address, task) = answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n");
    assert_eq!(&change(&address, &Method::DELETE, "/drains?service=shop/web").unwrap()[..], b"{}\n");
    let asked = task.join().unwrap();
    assert!(asked.starts_with("DELETE /drains?service=shop/web HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("accept: application/json\r\n"), "{asked}");
    for (answer, code, text) in [
        (
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 21\r\n\r\n{\"error\":\"only root\"}",
            Code::Permission,
            "only root",
        ),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 17\r\n\r\n{\"error\":\"what?\"}", Code::NotFound, "what?"),
        ("HTTP/1.1 400 Bad Request\r\nContent-Length: 15\r\n\r\n{\"error\":\"no.\"}", Code::Usage, "no."),
    ] {
        let (address, _task) = answering(answer);
        let failure = change(&address, &Method::POST, "/drains").unwrap_err();
        assert_eq!((failure.code, failure.to_string()), (code, text.into()));
    }
    // An earlier daemon.
    let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 30\r\n\r\n{\"error\":\"no route `/drains`\"}";
    let (address, _task) = answering(answer);
    let failure = change(&address, &Method::POST, "/drains").unwrap_err();
    assert_eq!(failure.code, Code::Data);
    assert!(failure.to_string().contains("another version"), "{failure}");
}

#[test]
fn refusals_of_the_daemon_are_shown() {
    let (address, task) = answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 9\r\n\r\nno maps.\n");
    let failure = get(&[address], "/maps").unwrap_err();
    assert_eq!(failure.code, Code::Unavailable);
    assert!(failure.to_string().starts_with("no maps.; try again"), "{failure}");
    task.join().unwrap();
    let (address, task) = answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\n\r\n\u{1b}[2Jgone");
    assert!(get(&[address], "/maps").unwrap_err().to_string().starts_with("\u{fffd}[2Jgone;"));
    task.join().unwrap();
    let (address, task) = answering("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(get(&[address], "/maps").unwrap_err().code, Code::Data);
    task.join().unwrap();
}

#[test]
fn a_question_that_is_understood_and_refused_is_no_matter_of_versions() {
    let (at, task) =
        answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 35\r\n\r\n{\"error\":\"there is none. Set one.\"}\n");
    let failure = get(&[at], "/diff?live=true").unwrap_err();
    assert_eq!((failure.code, failure.to_string().as_str()), (Code::Usage, "there is none. Set one."));
    task.join().unwrap();
    let (at, task) =
        answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 37\r\n\r\n{\"error\":\"unknown parameter `live`\"}\n");
    let failure = get(&[at], "/diff?live=true").unwrap_err();
    assert!(
        failure.to_string().starts_with("unknown parameter `live`; the daemon at ")
            && failure.to_string().ends_with(" may have another version"),
        "{failure}"
    );
    task.join().unwrap();
}

#[test]
fn a_request_that_is_too_early_may_succeed_later() {
    let (at, task) =
        answering("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 29\r\n\r\n{\"error\":\"ask again in 9 s\"}\n");
    let failure = get(&[at], "/diff?live=true").unwrap_err();
    assert_eq!((failure.code, failure.to_string().as_str()), (Code::Refused, "ask again in 9 s"));
    task.join().unwrap();
}

#[test]
fn an_answer_that_breaks_off_is_no_answer() {
    let (address, task) = answering("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhalf");
    let failure = get(&[address], "/maps").unwrap_err();
    assert_eq!(failure.code, Code::Unavailable);
    assert!(failure.to_string().contains("Restart it: systemctl restart nodelb."), "{failure}");
    task.join().unwrap();
}

/// Answers a check at once, and another request after this number of checks.
async fn slow(listener: tokio::net::TcpListener, checks: u32) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut request = [0; 512];
            let length = stream.read(&mut request).await.unwrap();
            if !request[..length].starts_with(format!("GET {CHECK} ").as_bytes()) {
                sleep(CHECK_EVERY * checks).await;
            }
            // The first client has left.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_hangs_is_recognised_in_seconds_and_one_that_works_gets_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = At::Tcp(listener.local_addr().unwrap());
    let begun = Instant::now();
    let error = inquire(&at, "/maps").await.unwrap_err();
    assert!(error.is::<Hanging>(), "{error:#}");
    assert!(begun.elapsed() < CHECK_EVERY + CHECK_TIME * 2, "{:?}", begun.elapsed());
    let server = tokio::spawn(slow(listener, 10));
    let (_, body) = inquire(&at, "/maps").await.unwrap();
    assert_eq!(&body[..], b"ok");
    server.abort();
}
