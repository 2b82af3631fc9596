//! Clients outside the node get no answer: the status, the history and `nodelb diagnose` say so.

use std::process::Command;
use std::time::Duration;

use nodelb_prober::Transport;
use serde_json::Value;

use crate::host::{Host, eventually, get};
use crate::lab::{POD_A1, Place};
use crate::lab_services::{ON_A1, Service};
use crate::network::ip;
use crate::outside::start;
use crate::outside_direct::{SERVICE, service, with_both};
use crate::outside_more::run;
use crate::outside_network::nft;
use crate::talk::{Server, TIMEOUT, ask};
use crate::ways::NODELB;

/// The name of the first service of the lab, which has a pod of node A as its backend.
const NAME: &str = "lab/s1";

/// A client has repeated its SYN within this time.
const REPEATED: Duration = Duration::from_millis(1_500);

/// The problem of the status, as its severity, service and cause.
fn problem() -> Option<(String, String, String)> {
    problem_of("Unanswered")
}

fn problem_of(reason: &str) -> Option<(String, String, String)> {
    let status = get("/status")?;
    let problems = status["problems"].as_array()?;
    let found = problems.iter().find(|problem| problem["reason"] == reason)?;
    let text = |column: &str| found[column].as_str().unwrap_or_default().to_owned();
    Some((text("severity"), text("object"), text("cause")))
}

/// The events of the service of this kind.
fn events(what: &str) -> usize {
    let history = get("/history").unwrap_or_default();
    let records = history["history"].as_array().cloned().unwrap_or_default();
    records.iter().filter(|record| record["what"] == what || record["event"] == what).count()
}

/// The finding of `nodelb diagnose`, which has this exit code.
fn diagnose(host: &Host, name: &str, code: i32) -> Value {
    let mut command = Command::new(NODELB);
    command.args(["diagnose", name, "-o", "json", "--no-connect", "--config"]).arg(host.path("nodelb.toml"));
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(output.status.code(), Some(code), "{report:#}");
    let finding = report["findings"].as_array().unwrap().iter().find(|finding| finding["kind"] == "unanswered");
    finding.unwrap_or_else(|| panic!("{report:#}")).clone()
}

/// Lets the client try until the status has the problem, which is a warning until the client has tried all backends.
fn until_known(client: &Place, node: Option<&Place>, to: &str) -> (String, String, String) {
    let mut found = None;
    eventually("the status says it", || {
        let answer = client.run(|| ask(to, Transport::Tcp, REPEATED));
        assert!(answer.is_err(), "{to}: {answer:?}");
        found = node.map_or_else(problem, |node| node.run(problem));
        found.as_ref().is_some_and(|(severity, ..)| severity == "critical")
    });
    found.unwrap()
}

/// Found by the twin test: the routes lead to backends by a second device, which nodelb takes for one of a pod.
#[test]
fn a_device_without_programs_that_leads_to_a_router_is_said_before_the_first_client() {
    const TEST: &str =
        "outside_unanswered::a_device_without_programs_that_leads_to_a_router_is_said_before_the_first_client";
    run(TEST, |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        lab.add_second_uplink();
        ip(&["route", "add", "203.0.113.64/27", "via", "203.0.113.41"]);
        eventually("the status says it", || problem_of("GatewayWithoutPrograms").is_some());
        let (severity, device, cause) = problem_of("GatewayWithoutPrograms").unwrap();
        assert_eq!((&*severity, &*device), ("warning", "device second"));
        assert!(cause.contains("lab/s2") && !cause.contains("lab/s1"), "{cause}");
        ip(&["route", "del", "203.0.113.64/27"]);
        eventually("the status no longer says it", || problem_of("GatewayWithoutPrograms").is_none());
    });
}

/// The policy of the firewall is set while nodelb runs, and an older connection stays (A1 of the operators' findings).
#[test]
fn a_firewall_that_drops_forwarded_packets_is_named() {
    run("outside_unanswered::a_firewall_that_drops_forwarded_packets_is_named", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let [to, _] = services[0].load_balancer();
        for _ in 0..5 {
            lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).unwrap();
        }
        assert_eq!(problem(), None);
        nft("table inet firewall {
                chain FORWARD { type filter hook forward priority 0; policy drop; }
            }");
        let (severity, name, cause) = until_known(&lab.client, None, &to);
        assert_eq!(severity, "critical", "{cause}");
        assert!(
            cause.contains("connections of clients outside the node to ") && cause.ends_with("got no answer"),
            "{cause}"
        );
        let finding = diagnose(host, &name, 2).to_string();
        for text in
            ["the policy of the chain FORWARD of the table firewall is drop", "iptables -I FORWARD", "got no answer"]
        {
            assert!(finding.contains(text), "{text}: {finding}");
        }
        assert_eq!((events("Unanswered"), events("Answered")), (1, 0));
        // Packets to backends on other nodes do not pass it.
        let [other, _] = services[1].load_balancer();
        lab.client.run(|| ask(&other, Transport::Tcp, TIMEOUT)).unwrap();
        nft("delete table inet firewall\n");
        eventually("the problem ends", || {
            lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).unwrap();
            problem().is_none()
        });
        assert_eq!((events("Unanswered"), events("Answered")), (1, 1));
    });
}

/// Docker, for one, makes the chain FORWARD drop what no rule accepts.
#[test]
fn a_firewall_is_said_before_the_first_client() {
    run("outside_unanswered::a_firewall_is_said_before_the_first_client", |host, lab, services| {
        nft("table inet firewall {
                chain FORWARD { type filter hook forward priority 0; policy drop; }
            }
            table bridge other {
                chain FORWARD { type filter hook forward priority 0; policy drop; }
            }");
        let _daemon = start(host, &[&services[0], &services[1]]);
        let found = || problem_of("ForwardPolicy");
        eventually("the status says it", || found().is_some());
        let (severity, object, cause) = found().unwrap();
        assert_eq!((&*severity, &*object), ("notice", "packets"), "{cause}");
        let start = "the chain FORWARD of the table firewall drops forwarded packets that no rule accepts, and clients outside \
                     the node have had no answer yet from the backends behind it of ";
        let names = cause.strip_prefix(start).unwrap_or_else(|| panic!("{cause}"));
        assert_eq!(names, NAME, "not those with backends elsewhere");
        nft("add rule inet firewall FORWARD accept");
        let [to, _] = services[0].load_balancer();
        eventually("a client is answered", || {
            lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).unwrap();
            found().is_none()
        });
    });
}

/// The program of the backend has ended, and no health check is configured.
#[test]
fn a_backend_that_refuses_clients_is_named() {
    run("outside_unanswered::a_backend_that_refuses_clients_is_named", |host, lab, _| {
        let service = Service::new(3, &[ON_A1]);
        let _daemon = start(host, &[&service]);
        let [to, _] = service.load_balancer();
        let (severity, name, cause) = until_known(&lab.client, None, &to);
        assert_eq!((&*severity, &*name), ("critical", "lab/s3"), "{cause}");
        assert!(cause.ends_with("were refused"), "{cause}");
        let finding = diagnose(host, &name, 2).to_string();
        assert!(finding.contains("ss -ltn") && finding.contains("were refused"), "{finding}");
        let _server = lab.pod_a1.run(|| Server::start("a1", &POD_A1, service.backend_port()));
        eventually("the problem ends", || {
            lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).unwrap();
            problem().is_none()
        });
    });
}

/// Nothing unwraps packets in tunnels, and machines with backends lack the address of the service.
#[test]
fn backends_that_cannot_take_packets_with_direct_return_are_named() {
    let test = "outside_unanswered::backends_that_cannot_take_packets_with_direct_return_are_named";
    with_both(test, "off", |net, forward| {
        let [to, _] = service(forward);
        for _ in 0..5 {
            net.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).unwrap();
        }
        for end in &mut net.ends {
            match end.daemon.take() {
                Some(daemon) => {
                    daemon.stop();
                    end.place.run(|| end.host.cleanup());
                }
                None => end.place.ip(&format!("address del {}/32 dev lo", SERVICE[0])),
            }
        }
        let entry = &net.entries[0];
        let (severity, name, cause) = until_known(&net.client, Some(&entry.place), &to);
        assert_eq!(severity, "critical", "{cause}");
        let finding = entry.place.run(|| diagnose(&entry.host, &name, 2)).to_string();
        assert!(finding.contains(&format!("forward is {forward}: the machine of each backend needs")), "{finding}");
    });
}
