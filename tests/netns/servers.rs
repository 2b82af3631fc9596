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
            let _ = answer_over_tcp(&mut client, own.octets());
        }
    });
}

/// Answers one query; both messages have a length prefix.
fn answer_over_tcp(client: &mut TcpStream, own: [u8; 4]) -> Option<()> {
    let mut length = [0; 2];
    client.read_exact(&mut length).ok()?;
    let mut question = vec![0; u16::from_be_bytes(length).into()];
    client.read_exact(&mut question).ok()?;
    let answer = resolve(&question, own)?;
    let length = u16::try_from(answer.len()).ok()?.to_be_bytes();
    client.write_all(&[&length, &*answer].concat()).ok()
}

/// The response to a message with one question; `None` if the message is invalid.
fn resolve(question: &[u8], own: [u8; 4]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut end = HEADER;
    while *question.get(end)? != 0 {
        end += 1 + usize::from(question[end]);
    }
    // The end of the name, and the type and class.
    end += 5;
    let mut answer = question.get(..end)?.to_vec();
    // A response, authoritative; one question, one answer, no other records.
    answer[2..HEADER].copy_from_slice(&[0x84, 0, 0, 1, 0, 1, 0, 0, 0, 0]);
    // A pointer to the name of the question; type A, class IN, TTL 0, four bytes.
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
    answer.extend(own);
    Some(answer)
}
