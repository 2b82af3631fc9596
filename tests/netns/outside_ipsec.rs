//! Policies of IPsec on the node: what they protect is not served in clear text.

use crate::host::{eventually, get};
use crate::lab::CLIENT;
use crate::outside::{TRANSPORTS, start};
use crate::outside_more::{addresses, run};
use crate::outside_network::talks;
use crate::sandbox::command;
use crate::talk::{SHORT, TIMEOUT, ask};

/// Adds or deletes policies that require ESP for what is sent to the client.
fn protect_client(change: &str) {
    for (client, any) in [(CLIENT[0], "0.0.0.0/0"), (CLIENT[1], "::/0")] {
        let selector = ["xfrm", "policy", change, "dir", "out", "src", any, "dst", client];
        let template: &[&str] = match change {
            "add" => &["tmpl", "proto", "esp", "mode", "transport"],
            _ => &[],
        };
        command("ip", &[&selector[..], template].concat());
    }
}

/// Whether the daemon's answer contains the text.
fn says(path: &str, text: &str) -> bool {
    get(path).is_some_and(|answer| answer.to_string().contains(text))
}

#[test]
fn what_ipsec_protects_is_not_served_in_clear_text() {
    run("outside_ipsec::what_ipsec_protects_is_not_served_in_clear_text", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let all = || {
            let to = addresses(&services);
            to.into_iter().flat_map(|to| TRANSPORTS.map(|transport| (to.clone(), transport))).collect::<Vec<_>>()
        };
        for (to, transport) in all() {
            lab.client.run(|| ask(&to, transport, TIMEOUT)).unwrap_or_else(|error| panic!("{to}: {error}"));
        }
        let mut talks = talks(lab, &services);
        protect_client("add");
        eventually("the policies are in effect", || says("/history", "policies of IPsec protect packets"));
        for (to, transport) in all() {
            let answer = lab.client.run(|| ask(&to, transport, SHORT));
            assert!(answer.is_err(), "{to} {transport:?}: {answer:?}");
        }
        let (_, talk) = &mut talks[0];
        assert!(talk.ask().is_err(), "a connection ends");
        assert!(says("/status", "policies of IPsec protect packets that nodelb cannot encrypt"));
        protect_client("delete");
        eventually("the policies are gone", || {
            lab.client.run(|| all().iter().all(|(to, transport)| ask(to, *transport, SHORT).is_ok()))
        });
    });
}
