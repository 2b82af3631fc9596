//! The flight recorder over restarts of the daemon: records survive `kill -9`, numbers continue,
//! and changes during the downtime are marked as such.

use std::fs;
use std::io::Write;

use nodelb_prober::Transport;
use serde_json::{Value, json};

use crate::host::{Host, connect, eventually, history, is_served_by, service};
use crate::sandbox;

const FRONTEND: &str = "198.51.100.10:80";
const SHOP: &str = "shop/web";

fn serve(host: &Host, backends: &[&str]) {
    host.serve("web.toml", &service(SHOP, &[FRONTEND], backends));
    let backends: Vec<String> = backends.iter().map(|backend| format!("{backend}/TCP")).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    eventually("the backends", || is_served_by(&format!("{FRONTEND}/TCP"), &backends));
}

/// The rows for TCP; the service has UDP ports, too.
fn rows() -> Vec<Value> {
    history(SHOP).into_iter().filter(|row| row["port"] == "TCP/IPv4").collect()
}

fn whats() -> Vec<String> {
    rows().iter().map(|row| row["what"].as_str().unwrap().to_owned()).collect()
}

fn sequences() -> Vec<u64> {
    rows().iter().map(|row| row["sequence"].as_u64().unwrap()).collect()
}

/// Whether all records are in the file.
fn is_written(host: &Host) -> bool {
    let text = fs::read_to_string(host.path("state/history.jsonl")).unwrap_or_default();
    let last = sequences().last().copied().unwrap_or(0);
    text.lines().any(|line| line.starts_with(&format!("{{\"sequence\":{last},")))
}

#[test]
fn what_was_recorded_outlives_the_daemon() {
    sandbox::run("history::what_was_recorded_outlives_the_daemon", |sandbox| {
        let host = Host::new(sandbox);
        serve_and_break(&host);
        let daemon = host.start();
        serve(&host, &["192.0.2.1:80", "192.0.2.2:80"]);
        serve(&host, &["192.0.2.2:80"]);
        serve(&host, &[]);
        eventually("three records", || whats() == ["Changed", "Changed", "Emptied"]);
        assert_eq!(rows()[1]["removed"], json!(["192.0.2.1:80/TCP"]));
        assert!(rows().iter().all(|row| row["kernel"] == "done" && row["to_kernel"].as_f64() > Some(0.0)));
        let (before, numbers) = (rows(), sequences());
        eventually("the records in the file", || is_written(&host));
        daemon.kill();

        // A truncated line and one of a newer version do not affect the others.
        let path = host.path("state/history.jsonl");
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"sequence\":1,\"what\":\"Sung\"}\n{\"sequence\":70,\"at\":17").unwrap();
        host.serve("web.toml", &service(SHOP, &[FRONTEND], &["192.0.2.3:80"]));
        let daemon = host.start();
        eventually("what changed while no daemon ran", || whats().len() == 4);
        let after = rows();
        for (old, row) in before.iter().zip(&after) {
            assert_eq!(
                (&old["sequence"], &old["time"], &old["added"]),
                (&row["sequence"], &row["time"], &row["added"])
            );
            assert!(row["detail"].to_string().contains("before the last start"), "{row}");
        }
        assert!(sequences()[3] > numbers[2], "{:?}", sequences());
        assert_eq!((&after[3]["what"], &after[3]["added"]), (&json!("Changed"), &json!(["192.0.2.3:80/TCP"])));
        assert!(after[3]["detail"].to_string().contains("while nodelb was not running"), "{}", after[3]);
        assert_eq!(connect(FRONTEND, Transport::Tcp, 1).failures(), 1, "nothing listens there");

        // New records are still appended to the file.
        serve(&host, &["192.0.2.4:80"]);
        eventually("the record in the file", || whats().len() == 5 && is_written(&host));
        daemon.stop();
        host.cleanup();
    });
}

/// Replaces the file with a directory: the history of the current run still works.
fn serve_and_break(host: &Host) {
    fs::create_dir_all(host.path("state/history.jsonl")).unwrap();
    serve_first(host);
    let daemon = host.start();
    serve(host, &["192.0.2.1:80", "192.0.2.9:80"]);
    eventually("a record", || whats() == ["Changed"]);
    host.assert_logged("history.jsonl cannot be read: it is not a file");
    daemon.kill();
    host.cleanup();
    fs::remove_dir(host.path("state/history.jsonl")).unwrap();
    serve_first(host);
}

fn serve_first(host: &Host) {
    host.serve("web.toml", &service(SHOP, &[FRONTEND], &["192.0.2.1:80"]));
}
