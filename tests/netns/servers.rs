//! Backends with real protocols: HTTP with keep-alive, and DNS. Each answers with its own address
//! and ends with the process of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

/// Answers every request of every connection with its own address.
pub(crate) fn http(at: &str) {
    let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    let name = at.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let name = name.clone();
            thread::spawn(move || answer_requests(&client, &name));
        }
    });
}

/// Answers requests until the client disconnects.
fn answer_requests(client: &TcpStream, name: &str) {
    let mut lines = BufReader::new(client).lines();
    while let Some(Ok(_request)) = lines.next() {
        // Skips the headers up to the empty line.
        lines.by_ref().take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}\n", name.len() + 1);
        if (&*client).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Answers every query for TXT records of a name such as `15.test` with this number of records of 255
/// characters, over UDP and TCP. An answer over UDP that is larger than the client allows is truncated
/// (RFC 1035, RFC 6891).
pub(crate) fn large_dns(at: &str) {
    let socket = UdpSocket::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            if let Some(answer) = texts(&question[..length], true) {
                drop(socket.send_to(&answer, from));
            }
        }
    });
    let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            // The server closes the connection on invalid input.
            let _ = answer_over_tcp(&mut client, |question| texts(question, false));
        }
    });
}

/// Answers every query for an A record with its own address, over UDP and TCP (RFC 1035).
pub(crate) fn dns(at: &str) {
    let at: SocketAddr = at.parse().unwrap();
    let IpAddr::V4(own) = at.ip() else { panic!("{at}: an A record has an IPv4 address") };
    let socket = UdpSocket::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            if let Some(answer) = resolve(&question[..length], own.octets()) {
                drop(socket.send_to(&answer, from));
            }
        }
    });
    let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            // The server closes the connection on invalid input.
            let _ = answer_over_tcp(&mut client, |question| resolve(question, own.octets()));
        }
    });
}

/// Answers one query; both messages have a length prefix.
fn answer_over_tcp(client: &mut TcpStream, answer: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<()> {
    let mut length = [0; 2];
    client.read_exact(&mut length).ok()?;
    let mut question = vec![0; u16::from_be_bytes(length).into()];
    client.read_exact(&mut question).ok()?;
    let answer = answer(&question)?;
    let length = u16::try_from(answer.len()).ok()?.to_be_bytes();
    client.write_all(&[&length, &*answer].concat()).ok()
}

/// Length of the header of a DNS message.
const HEADER: usize = 12;

/// The end of the question of a message: the name, its type and class.
fn end_of_question(message: &[u8]) -> Option<usize> {
    let mut end = HEADER;
    while *message.get(end)? != 0 {
        end += 1 + usize::from(message[end]);
    }
    Some(end + 5)
}

/// The response with as many TXT records as the name requests; `None` if the message is invalid.
fn texts(question: &[u8], is_limited: bool) -> Option<Vec<u8>> {
    let end = end_of_question(question)?;
    let label = question.get(HEADER + 1..)?.get(..usize::from(question[HEADER]))?;
    let count: u16 = std::str::from_utf8(label).ok()?.parse().ok()?;
    let mut answer = question.get(..end)?.to_vec();
    let [high, low] = count.to_be_bytes();
    answer[2..HEADER].copy_from_slice(&[0x84, 0, 0, 1, high, low, 0, 0, 0, 0]);
    for number in 0..count {
        // A pointer to the name; type TXT, class IN, TTL 0, one string of 255 bytes.
        answer.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 1, 0, 255]);
        answer.extend(format!("{number:x<255}").bytes());
    }
    // In an OPT record, which follows the question, the class is the largest size.
    let edns = question.get(end..).filter(|record| record.starts_with(&[0, 0, 41]));
    let limit = edns.map_or(512, |record| u16::from_be_bytes([record[3], record[4]]));
    if is_limited && answer.len() > usize::from(limit) {
        answer.truncate(end);
        answer[2..HEADER].copy_from_slice(&[0x86, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
    Some(answer)
}

/// The response to a message with one question; `None` if the message is invalid.
fn resolve(question: &[u8], own: [u8; 4]) -> Option<Vec<u8>> {
    let end = end_of_question(question)?;
    let mut answer = question.get(..end)?.to_vec();
    // A response, authoritative; one question, one answer, no other records.
    answer[2..HEADER].copy_from_slice(&[0x84, 0, 0, 1, 0, 1, 0, 0, 0, 0]);
    // A pointer to the name of the question; type A, class IN, TTL 0, four bytes.
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
    answer.extend(own);
    Some(answer)
}
