//! `nodelb watch --packets`: prints what is done with packets of clients outside the node, and writes them to a file
//! for Wireshark and tcpdump. The daemon selects the packets; this module owns their forms.

mod headers;
mod pcapng;

use nodelb_core::model::service::ServiceName;
use std::fs::File;
use std::io::{self, Write};

use anyhow::Context;
use nodelb_core::model::calendar;
use nodelb_report::rows::{LostRow, PacketRow};

use self::headers::Headers;
use self::pcapng::{Packet, PcapWriter};
use crate::asking::{Parameter, target};
use crate::exit::{Code, Failure};
use crate::follow::Event;
use crate::print::stdout_for_bytes;
use crate::{Output, WatchOptions, client, unwritten};

/// Prints packets until the command is interrupted, the daemon ends, or the output has no reader any more.
pub(crate) fn watch(options: &WatchOptions, service: Option<&ServiceName>, out: &mut dyn Write) -> Result<(), Failure> {
    let addresses = options.connection.admin.clone().map_or_else(client::default_addresses, |at| vec![at]);
    let answer = client::get(&addresses, &target("/packets", &[("output", "json".into())]))?;
    let answer: serde_json::Value =
        serde_json::from_slice(&answer).map_err(|error| Failure::message(Code::Data, format!("/packets: {error}")))?;
    if answer["watchers"].as_array().is_none_or(Vec::is_empty) {
        let message = "the daemon translates no packets: packets.mode is \"off\"; see nodelb devices";
        return Err(Failure::message(Code::Unavailable, message));
    }
    let mut sinks = Sinks::new(options, out)?;
    let mut pending = Vec::new();
    client::follow(&addresses, &target("/packets", &parameters(options, service)), |piece| {
        pending.extend_from_slice(piece);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            sinks.take(&line)?;
        }
        sinks.flush()
    })
}

fn parameters(options: &WatchOptions, service: Option<&ServiceName>) -> Vec<Parameter> {
    let service = service.map(|service| ("service", service.to_string()));
    let dropped = options.dropped.then(|| ("dropped", "true".into()));
    let stream = [("watch", "true".into()), ("output", "json".into())];
    service.into_iter().chain(dropped).chain(stream).collect()
}

struct Sinks<'o> {
    output: Output,
    /// `None` if the packets are written to stdout as a capture.
    lines: Option<&'o mut dyn Write>,
    capture: Option<PcapWriter<Box<dyn Write>>>,
}

impl<'o> Sinks<'o> {
    fn new(options: &WatchOptions, out: &'o mut dyn Write) -> Result<Self, Failure> {
        let is_stdout = options.pcap.as_ref().is_some_and(|path| path.as_os_str() == "-");
        let file: Option<Box<dyn Write>> = match &options.pcap {
            None => None,
            Some(_) if is_stdout => Some(Box::new(stdout_for_bytes()?)),
            Some(path) => {
                let file = File::create(path).with_context(|| format!("cannot create {}", path.display()));
                Some(Box::new(file.map_err(|error| Failure::new(Code::System, error))?))
            }
        };
        let capture = file.map(PcapWriter::new).transpose().map_err(|error| uncaptured(&error))?;
        Ok(Self { output: options.output, lines: (!is_stdout).then_some(out), capture })
    }

    fn take(&mut self, line: &[u8]) -> Result<(), Failure> {
        let unread = |error: serde_json::Error| {
            Failure::message(
                Code::Data,
                format!("the daemon's answer cannot be read ({error}); it may have another version"),
            )
        };
        let event: Event = serde_json::from_slice(line).map_err(unread)?;
        if event.event == "changed" {
            return self.take_lost(&event);
        }
        if event.event != "added" {
            return Ok(());
        }
        let row: PacketRow = serde_json::from_value(event.data.clone()).map_err(unread)?;
        if let Some(capture) = &mut self.capture {
            capture_row(capture, &row).map_err(|error| uncaptured(&error))?;
        }
        if let Some(lines) = &mut self.lines {
            let text = match self.output {
                Output::Text => to_text(&row),
                Output::Json => format!("{}\n", event.data),
            };
            lines.write_all(text.as_bytes()).map_err(|error| unwritten(&error))?;
        }
        Ok(())
    }

    /// Takes a line about packets that are missing, and that no packet follows.
    fn take_lost(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let text = match self.output {
            Output::Text => {
                serde_json::from_value::<LostRow>(event.data.clone()).map(|row| row.line()).unwrap_or_default()
            }
            Output::Json => format!("{}\n", event.data),
        };
        lines.write_all(text.as_bytes()).map_err(|error| unwritten(&error))
    }

    /// Writes what is pending, and returns whether the output still has a reader.
    fn flush(&mut self) -> Result<bool, Failure> {
        if let Some(capture) = &mut self.capture {
            capture.flush().map_err(|error| uncaptured(&error))?;
        }
        if let Some(lines) = &mut self.lines {
            lines.flush().map_err(|error| unwritten(&error))?;
        }
        Ok(true)
    }
}

fn uncaptured(error: &io::Error) -> Failure {
    Failure::message(Code::System, format!("the capture cannot be written: {error}"))
}

/// Writes the packet as it was, and as it became.
fn capture_row(capture: &mut PcapWriter<impl Write>, row: &PacketRow) -> io::Result<()> {
    let before = unhex(&row.bytes);
    let comment = comment(row);
    let has_ethernet = row.link == "ethernet";
    let (time, length) = (row.time, row.length);
    capture.packet(&Packet { device: &row.device, has_ethernet, time, length, bytes: &before, comment: &comment })?;
    let (Some(bytes), Some(length)) = (&row.next_bytes, row.next_length) else { return Ok(()) };
    let after = unhex(bytes);
    let device = row.next_device.as_deref().unwrap_or(&row.device);
    let has_ethernet = row.next_link.as_deref() == Some("ethernet");
    let comment = format!("after nodelb: {comment}");
    capture.packet(&Packet { device, has_ethernet, time, length, bytes: &after, comment: &comment })
}

/// One line, and one before it if packets are missing.
fn to_text(row: &PacketRow) -> String {
    let seconds = calendar::utc(row.time / 1_000_000).unwrap_or_default();
    let time = format!("{}.{:06}Z", seconds.trim_end_matches('Z'), row.time % 1_000_000);
    let mut text = String::new();
    if row.lost > 0 {
        text.push_str(&LostRow { lost: row.lost, lost_at_most: row.lost_at_most }.line());
    }
    let before = headers(&row.bytes, &row.link);
    text.push_str(&format!("{time}  {} {}  {before}  {}\n", row.device, row.direction, comment(row)));
    text
}

/// The verdict with the reason, what the packet became, and the service.
fn comment(row: &PacketRow) -> String {
    let mut text = row.verdict.clone();
    text.extend(row.reason.as_ref().map(|reason| format!(" ({reason})")));
    let link = row.next_link.as_deref().unwrap_or(&row.link);
    let after = row.next_bytes.as_ref().filter(|_| !matches!(&*row.verdict, "rst" | "icmp"));
    text.extend(after.map(|after| format!(" to {}", headers(after, link))));
    text.extend(row.next_device.as_ref().map(|device| format!(" by {device}")));
    text.extend(row.service.as_ref().map(|service| format!("  {service}")));
    text
}

/// The addresses of a packet, or the number of its bytes if they are not those of an IP packet.
fn headers(hex: &str, link: &str) -> String {
    let bytes = unhex(hex);
    let l2_length = if link == "ethernet" { headers::ETHERNET } else { 0 };
    let ip = bytes.get(l2_length..).unwrap_or_default();
    Headers::read(ip).map_or_else(|| format!("{} bytes", bytes.len()), |headers| headers.to_string())
}

/// Reads hexadecimal digits. What is none ends the bytes.
fn unhex(text: &str) -> Vec<u8> {
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map_while(byte).collect()
}

#[cfg(test)]
#[path = "packets/tests/packets.rs"]
mod tests;
