//! The admin API does what `/openapi.json` says. The requests follow from the document: to every parameter of every
//! operation, values that its schema allows and values that it forbids; the schema also says what to expect. A request
//! that fits is never answered with 400, one that does not always is, and every answer has a status, a content type and a
//! body that the document describes. Over the Unix socket, where all of the API is.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use proptest::prelude::Rng;
use proptest::test_runner::TestRunner;
use serde_json::Value;

use super::asked::Daemon;

#[path = "openapi/schema.rs"]
mod schema;
#[path = "openapi/values.rs"]
mod values;

/// Time limit for one answer, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Combinations of values for each operation.
const COMBINATIONS: usize = 24;
/// The formats that clients request by a header.
const ACCEPTED: [&str; 6] =
    ["*/*", "application/json", "text/plain", "text/html", "text/event-stream", "application/openmetrics-text"];
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];

/// An answer, or the beginning of one that goes on.
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn request(socket: &str, (method, target): (&str, &str), accept: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).expect("the daemon listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let text = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("the daemon reads");
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).expect("an answer in time"), 1, "{method} {target}: no answer");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("UTF-8");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let header =
        |line: &str| Some((line.split_once(": ")?.0.to_ascii_lowercase(), line.split_once(": ")?.1.to_owned()));
    let headers: BTreeMap<_, _> = head.lines().filter_map(header).collect();
    let mut body = Vec::new();
    match headers.get("content-length").map(|length| length.parse().expect("a number")) {
        _ if method == "HEAD" => {}
        Some(length) => drop(stream.take(length).read_to_end(&mut body).expect("a body")),
        // A stream. Its first piece has all that there was to say before the first change.
        None => {
            let mut piece = [0; 64];
            let read = stream.read(&mut piece).expect("the beginning of a stream");
            body.extend_from_slice(&piece[..read]);
        }
    }
    Answer { status, headers, body }
}

/// A parameter: what the document says of it, and the texts that it is tried with.
struct Parameter {
    name: String,
    is_required: bool,
    allowed: Vec<String>,
    forbidden: Vec<String>,
}

struct Operation<'d> {
    document: &'d Value,
    socket: &'d str,
    method: String,
    path: &'d str,
    responses: &'d Value,
    parameters: Vec<Parameter>,
    /// What is not as the document says.
    problems: BTreeSet<String>,
}

type Query<'q> = Vec<(&'q str, &'q str)>;

impl Operation<'_> {
    fn send(&self, query: &[(&str, &str)], accept: &str) -> (String, Answer) {
        let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        let target = format!("{}{mark}{}", self.path, pairs.join("&"));
        let answer = request(self.socket, (&self.method, &target), accept);
        (format!("{} {target} ({accept})", self.method), answer)
    }

    /// Only root may change something.
    fn may_be_forbidden(&self) -> bool {
        self.method != "GET" && !nix::unistd::geteuid().is_root()
    }

    /// Sends what fits the document.
    fn fits(&mut self, query: &[(&str, &str)], accept: &str) {
        let (what, answer) = self.send(query, accept);
        let described = &self.responses[answer.status.to_string()];
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let problem = if answer.status == 400 && described["$ref"].is_string() {
            Some(format!("{what}: fits the schema, and is refused: {text}"))
        } else if answer.status >= 500 && described["$ref"].is_string() {
            Some(format!("{what}: {} {text}", answer.status))
        } else {
            self.wrong_answer(&answer).map(|reason| format!("{what}: {} {reason}: {text}", answer.status))
        };
        self.problems.extend(problem);
    }

    /// Sends what the document forbids.
    fn violates(&mut self, query: &[(&str, &str)]) {
        let (what, answer) = self.send(query, "application/json");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        if answer.status != 400 && !(answer.status == 403 && self.may_be_forbidden()) {
            self.problems.insert(format!("{what}: violates the schema, and the answer is {}: {text}", answer.status));
        } else if let Some(reason) = self.wrong_answer(&answer) {
            self.problems.insert(format!("{what}: {} {reason}: {text}", answer.status));
        }
    }

    /// Compares an answer with what the document has for its status.
    fn wrong_answer(&self, answer: &Answer) -> Option<String> {
        let described = schema::resolved(&self.responses[answer.status.to_string()], self.document);
        let Some(content) = described["content"].as_object() else { return Some("is not described".into()) };
        let media = |text: &str| text.split(';').next().unwrap_or_default().to_owned();
        let form = answer.headers.get("content-type").cloned().unwrap_or_default();
        let Some((_, of_form)) = content.iter().find(|(key, _)| media(key) == media(&form)) else {
            return Some(format!("has the content type {form:?}, which is not described"));
        };
        if media(&form) == "application/json" {
            let Ok(body) = serde_json::from_slice(&answer.body) else { return Some("is not JSON".into()) };
            return schema::fits(&body, &of_form["schema"], self.document).err();
        }
        None
    }

    fn check(&mut self, runner: &mut TestRunner) {
        let parameters = std::mem::take(&mut self.parameters);
        let needed = |except: &str| -> Query<'_> {
            let needed = parameters.iter().filter(|it| it.is_required && it.name != except);
            needed.map(|it| (&*it.name, &*it.allowed[0])).collect()
        };
        for accept in ACCEPTED {
            self.fits(&needed(""), accept);
        }
        for parameter in &parameters {
            let name = &*parameter.name;
            for value in &parameter.allowed {
                self.fits(&with(name, value, needed(name)), "application/json");
            }
            for value in &parameter.forbidden {
                self.violates(&with(name, value, needed(name)));
            }
            let first = &*parameter.allowed[0];
            self.violates(&with(name, first, with(name, first, needed(name))));
            if parameter.is_required {
                self.violates(&needed(name));
            }
        }
        self.violates(&with("no-such-parameter", "", needed("")));
        for _ in 0..COMBINATIONS {
            let mut some = |number: usize| runner.rng().next_u32() as usize % number;
            let chosen = parameters.iter().filter(|it| it.is_required || some(2) == 0).collect::<Vec<_>>();
            let query = chosen.iter().map(|it| (&*it.name, &*it.allowed[some(it.allowed.len())])).collect::<Vec<_>>();
            let accept = ACCEPTED[some(ACCEPTED.len())];
            self.fits(&query, accept);
        }
    }
}

fn with<'q>(name: &'q str, value: &'q str, mut query: Query<'q>) -> Query<'q> {
    query.push((name, value));
    query
}

/// Percent-encodes everything but letters and digits.
fn encoded(value: &str) -> String {
    let byte = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).into() } else { format!("%{byte:02X}") };
    value.bytes().map(byte).collect()
}

/// Other methods than those of the document are refused, and the answer names those.
fn check_methods(socket: &str, path: &str, described: &BTreeSet<String>) -> Vec<String> {
    let other = METHODS.into_iter().filter(|method| !described.contains(*method));
    let refused = other.filter_map(|method| {
        let answer = request(socket, (method, path), "*/*");
        let allowed = answer.headers.get("allow").cloned().unwrap_or_default();
        let allowed: BTreeSet<String> =
            allowed.split([',', ' ']).filter(|it| !it.is_empty() && *it != "HEAD").map(str::to_owned).collect();
        (answer.status != 405 || allowed != *described)
            .then(|| format!("{method} {path}: {} with the methods {allowed:?}", answer.status))
    });
    refused.collect()
}

#[test]
fn the_api_accepts_and_answers_exactly_what_openapi_says() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let answer = request(socket, ("GET", "/openapi.json"), "*/*");
    let document: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let mut runner = TestRunner::deterministic();
    let (mut problems, mut operations, mut requests) = (Vec::new(), 0, 0);
    for (path, item) in document["paths"].as_object().expect("paths") {
        let item = item.as_object().expect("operations");
        problems.extend(check_methods(socket, path, &item.keys().map(|method| method.to_uppercase()).collect()));
        for (method, operation) in item {
            let described = operation["parameters"].as_array().expect("parameters");
            let parameters: Vec<Parameter> = described.iter().map(|it| values::parameter(it, &mut runner)).collect();
            requests += parameters.iter().map(|it| it.allowed.len() + it.forbidden.len()).sum::<usize>();
            operations += 1;
            let mut operation = Operation {
                document: &document,
                socket,
                method: method.to_uppercase(),
                path,
                responses: &operation["responses"],
                parameters,
                problems: BTreeSet::new(),
            };
            operation.check(&mut runner);
            problems.extend(operation.problems);
        }
    }
    let number = problems.len();
    problems.truncate(40);
    assert!(problems.is_empty(), "{number} problems, such as\n{}", problems.join("\n"));
    assert!(operations > 20 && requests > 2_000, "{operations} operations, {requests} requests");
    assert_eq!(request(socket, ("GET", "/healthz"), "*/*").status, 200);
}
