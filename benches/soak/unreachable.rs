//! Prints the datagrams for which the kernel found no socket. Each is the cause of an exchange without an answer, whose
//! port the prober reports.

use std::io::Read as _;
use std::net::Ipv4Addr;
use std::thread;

use socket2::{Domain, Protocol, Socket, Type};

/// An ICMP message of this type contains the first bytes of a datagram that was not delivered (RFC 792).
const UNREACHABLE: u8 = 3;

/// Starts the thread that prints. It ends with the process.
pub(crate) fn print() {
    let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    thread::spawn(move || {
        let mut packet = [0; 256];
        while let Ok(length) = socket.read(&mut packet) {
            if let Some(line) = describe(&packet[..length]) {
                eprintln!("{line}");
            }
        }
    });
}

fn describe(packet: &[u8]) -> Option<String> {
    let message = payload(packet)?;
    let (&[UNREACHABLE, code], undelivered) = (message.first_chunk::<2>()?, message.get(8..)?) else { return None };
    let address = |at| Some(Ipv4Addr::from(*undelivered.get(at..)?.first_chunk::<4>()?));
    let ports = payload(undelivered)?;
    let port = |at| Some(u16::from_be_bytes(*ports.get(at..)?.first_chunk::<2>()?));
    let (source, destination) = (address(12)?, address(16)?);
    Some(format!("not delivered (code {code}): {source}:{} to {destination}:{}", port(0)?, port(2)?))
}

/// What follows the header of an IPv4 packet, whose length in words is in its first byte.
fn payload(packet: &[u8]) -> Option<&[u8]> {
    packet.get(usize::from(packet.first()? & 15) * 4..)
}
