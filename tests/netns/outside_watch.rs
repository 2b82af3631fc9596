//! What an operator sees of packets from outside the node: events, a capture, counts by service.

use std::fs;
use std::process::{Child, Command, Stdio};

use nodelb_prober::Transport;

use crate::host::{Host, answer, eventually, get};
use crate::lab::{CLIENT, Lab, POD_A1, POD_B};
use crate::lab_services::{ON_A1, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, start};
use crate::sandbox;
use crate::talk::{Server, TIMEOUT, ask};

const NODELB: &str = env!("CARGO_BIN_EXE_nodelb");

/// A running `nodelb watch --packets`, which ends with this value.
struct Watch(Child);

impl Watch {
    fn new(arguments: &[&str], output: &str) -> Self {
        let mut command = Command::new(NODELB);
        command.args(["watch", "--packets"]).args(arguments).stdout(fs::File::create(output).unwrap());
        Self(command.stderr(Stdio::inherit()).spawn().unwrap())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn read(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

#[test]
fn packets_can_be_watched_and_their_fate_is_counted() {
    sandbox::run("outside_watch::packets_can_be_watched_and_their_fate_is_counted", |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        // The socket of the daemon: packets are shown to its users only.
        fs::create_dir_all("/run/nodelb").unwrap();
        host.configure(PACKETS_ON);
        let _servers = [
            lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001)),
            lab.pod_b.run(|| Server::start("b", &POD_B, 8_002)),
        ];
        let services = [Service::new(1, &[ON_A1]), Service::new(2, &[ON_B]), Service::new(3, &[])];
        let [local, remote, empty] = &services;
        let _daemon = start(&host, &[local, remote, empty]);
        let [all, drops, capture] = ["/run/all", "/run/drops", "/run/capture.pcapng"];
        let watches = [Watch::new(&["--pcap", capture], all), Watch::new(&["--dropped", "--output", "json"], drops)];
        eventually("watchers", || get("/packets").is_some_and(|page| page["watchers"][0]["watchers"] == 2));
        // A watcher may see the end of a connection first.
        let syn_of = |text: &str| {
            let is_syn =
                |line: &&str| line.contains("translated to TCP") && line.contains(&format!("{}:8001 [S]", POD_A1[0]));
            text.lines().find(is_syn).map(str::to_owned)
        };
        // The programs know the filter of a new watcher a moment later.
        eventually("events about all packets", || {
            for service in &services {
                for transport in TRANSPORTS {
                    let _ = lab.client.run(|| ask(&service.load_balancer()[0], transport, TIMEOUT));
                }
            }
            let refused = lab.client.run(|| ask(&empty.node_ports()[1], Transport::Udp, TIMEOUT));
            assert!(refused.is_err());
            let text = read(all);
            ["translated to TCP", "translated to UDP", "redirected to TCP", "redirected to UDP", "icmp (no-backend)"]
                .iter()
                .all(|verdict| text.contains(verdict))
                && syn_of(&text).is_some()
                && read(drops).lines().count() >= 3
        });
        let text = read(all);
        let client = CLIENT[0];
        let line =
            |of: &str| text.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("{of}: {text}")).to_owned();
        let syn = syn_of(&text).unwrap();
        assert!(syn.contains(&format!("uplink in  TCP {client}:")) && syn.contains("/TCP/IPv4"), "{syn}");
        let rst = line("rst (no-backend)");
        assert!(rst.contains(&format!("TCP {client}:")), "{rst}");
        for line in read(drops).lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(row["reason"], "no-backend", "{row}");
        }
        // A file that is being written may end within a block.
        drop(watches);
        check_capture(capture);
        check_counts();
    });
}

/// Each packet has its verdict as comment. `tshark` reads the file, if it is installed.
fn check_capture(path: &str) {
    let bytes = fs::read(path).unwrap();
    let mut comments = Vec::new();
    let mut rest = &bytes[..];
    while rest.len() >= 8 {
        let number = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        let length = usize::try_from(number(4)).unwrap();
        // The writer has ended within a block.
        if rest.len() < length {
            break;
        }
        if number(0) == 6 {
            let captured = usize::try_from(number(20)).unwrap();
            assert!((20..=96).contains(&captured), "{captured} bytes");
            comments.push(String::from_utf8_lossy(&rest[28 + captured.next_multiple_of(4)..length - 4]).into_owned());
        }
        assert_eq!(number(length - 4), number(4));
        rest = &rest[length..];
    }
    for verdict in
        ["translated to", "after nodelb: translated", "redirected to", "rst (no-backend)", "icmp (no-backend)"]
    {
        assert!(comments.iter().any(|comment| comment.contains(verdict)), "{verdict}: {comments:?}");
    }
    let Ok(output) = Command::new("tshark").args(["-r", path, "-T", "fields", "-e", "frame.comment"]).output() else {
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().count(), comments.len(), "{text}");
    assert!(text.contains("redirected to"), "{text}");
}

/// What `/drops` and `/metrics` count of it.
fn check_counts() {
    let drops = get("/drops?service=lab/s3").unwrap();
    let rows = drops["drops"].as_array().unwrap();
    let verdicts: Vec<_> = rows.iter().map(|row| row["verdict"].as_str().unwrap()).collect();
    assert!(verdicts.contains(&"rst") && verdicts.contains(&"icmp"), "{drops}");
    assert!(rows.iter().all(|row| row["reason"] == "no-backend" && row["last"].is_string()), "{drops}");
    assert_eq!(drops["counted"]["not_listed"], 0, "{drops}");
    let metrics = answer("/metrics", "text/plain").unwrap();
    let outside = |result: &str| {
        let is_it = |line: &&str| {
            line.starts_with("nodelb_service_connections_total{")
                && line.contains("from=\"outside\"")
                && line.contains(&format!("result=\"{result}\""))
                && !line.ends_with(" 0")
        };
        metrics.lines().filter(is_it).count()
    };
    assert_eq!((outside("translated"), outside("refused")), (4, 2), "{metrics}");
    let frontends = get("/frontends?service=lab/s1").unwrap();
    let access = |row: &serde_json::Value| (row["type"].clone(), row["outside"].clone());
    let rows: Vec<_> = frontends["frontends"].as_array().unwrap().iter().map(access).collect();
    assert!(rows.contains(&("ClusterIP".into(), "NodeOnly".into())), "{frontends}");
    assert!(rows.contains(&("LoadBalancer".into(), "Served".into())), "{frontends}");
}
