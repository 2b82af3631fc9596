//! The command line of the library, for `demo/`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use nodelb_prober::probe::connect_times;
use nodelb_prober::{Backend, Kept, Plan, Probe, Tally, Transport};

const USAGE: &str = "\
usage: nodelb-prober backend --name NAME [--tcp ADDR] [--tcp-lines ADDR] [--udp ADDR]
       nodelb-prober connect --to ADDR [-n COUNT] [--proto PROTO] [--json]
       nodelb-prober probe   --to ADDR [--rate N] [--duration SECONDS] [--proto PROTO] [--json]
       nodelb-prober keep    --to ADDR [-n COUNT] [--json]

backend  answers its name over TCP and UDP until it is killed
connect  connects COUNT times (default 1), one after the other
probe    connects N times per second (default 1000) for SECONDS, or until its standard input closes
keep     asks on COUNT connections (default 1) to a tcp-lines backend, until its standard input closes

PROTO is tcp (default), tcp-asking, tcp-lines, udp or udp-unconnected. ADDR is like 192.0.2.7:80 or [2001:db8::7]:80.
connect, probe and keep exit with 0 only if every exchange succeeded and showed ADDR as its peer.
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(problem) => {
            // If standard error is closed, there is no way to report it.
            drop(write!(io::stderr(), "nodelb-prober: {problem}\n\n{USAGE}"));
            ExitCode::from(64)
        }
    }
}

fn run() -> Result<ExitCode, String> {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let options = Options::parse(words)?;
    match command.as_str() {
        "backend" => backend(&options),
        "connect" => report(&connect_times(options.plan()?, options.number("-n", 1)?), &options),
        "probe" => report(&probe(&options)?, &options),
        "keep" => report(&keep(&options)?, &options),
        _ => Err(format!("unknown command `{command}`")),
    }
}

fn backend(options: &Options) -> Result<ExitCode, String> {
    let name = options.text("--name").ok_or("--name is missing")?;
    let mut listen = Vec::new();
    let kinds = [("--tcp", Transport::Tcp), ("--tcp-lines", Transport::TcpLines), ("--udp", Transport::Udp)];
    for (option, transport) in kinds {
        if let Some(text) = options.text(option) {
            listen.push((transport, address(option, text)?));
        }
    }
    let backend = Backend::start(name, &listen).map_err(|error| error.to_string())?;
    backend.serve();
    Ok(ExitCode::SUCCESS)
}

fn probe(options: &Options) -> Result<Tally, String> {
    let seconds = options.number("--duration", 0)?;
    let probe = Probe::start(Plan { rate: options.number("--rate", 1000)?, ..options.plan()? });
    if seconds > 0 {
        thread::sleep(Duration::from_secs(seconds.into()));
    } else {
        // Treats an unreadable standard input as closed.
        drop(io::stdin().read_to_end(&mut Vec::new()));
    }
    Ok(probe.finish())
}

/// The interval between two questions on a connection.
const KEPT_INTERVAL: Duration = Duration::from_millis(100);

fn keep(options: &Options) -> Result<Tally, String> {
    let failed = |error: io::Error| error.to_string();
    let mut kept = Kept::open(options.plan()?.to, Transport::TcpLines, options.number("-n", 1)?).map_err(failed)?;
    let (ended, end) = sync_channel(0);
    thread::spawn(move || {
        drop(io::stdin().read_to_end(&mut Vec::new()));
        drop::<SyncSender<()>>(ended);
    });
    loop {
        kept.ask();
        if end.recv_timeout(KEPT_INTERVAL) == Err(RecvTimeoutError::Disconnected) {
            return Ok(kept.tally().clone());
        }
    }
}

fn report(tally: &Tally, options: &Options) -> Result<ExitCode, String> {
    let line = if options.json { tally.json() } else { tally.to_string() };
    writeln!(io::stdout(), "{line}").map_err(|error| format!("cannot write the result: {error}"))?;
    Ok(if tally.failures() == 0 && tally.ok() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The arguments after the command: `--json`, and options with one value each.
struct Options {
    values: BTreeMap<String, String>,
    json: bool,
}

impl Options {
    const KNOWN: [&str; 9] =
        ["--name", "--tcp", "--tcp-lines", "--udp", "--to", "--rate", "--duration", "--proto", "-n"];

    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { values: BTreeMap::new(), json: false };
        while let Some(word) = words.next() {
            if word == "--json" {
                options.json = true;
            } else if Self::KNOWN.contains(&word.as_str()) {
                let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
                options.values.insert(word, value);
            } else {
                return Err(format!("unknown option `{word}`"));
            }
        }
        Ok(options)
    }

    fn text(&self, option: &str) -> Option<&str> {
        self.values.get(option).map(String::as_str)
    }

    fn number(&self, option: &str, default: u32) -> Result<u32, String> {
        let Some(text) = self.text(option) else { return Ok(default) };
        text.parse().map_err(|error| format!("{option} {text}: {error}"))
    }

    fn plan(&self) -> Result<Plan, String> {
        let to = address("--to", self.text("--to").ok_or("--to is missing")?)?;
        Ok(Plan::new(to, self.text("--proto").unwrap_or("tcp").parse()?))
    }
}

fn address(option: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_not_an_address| format!("{option} {text}: expected like 192.0.2.7:80 or [2001:db8::7]:80"))
}
