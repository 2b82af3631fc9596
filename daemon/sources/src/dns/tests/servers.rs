use super::*;

fn servers_of(text: &str) -> (Vec<String>, Vec<String>) {
    let (servers, problems) = of_resolv_conf(text, &|name| (name == "eth0").then_some(7));
    (servers.iter().map(ToString::to_string).collect(), problems)
}

#[test]
fn servers_of_resolv_conf() {
    let text = "# comment\nsearch example.com\nnameserver 192.0.2.53\nnameserver  2001:db8::53 \n\
                options edns0\nnameserver 192.0.2.54\nnameserver 192.0.2.55\n";
    assert_eq!(servers_of(text).0, ["192.0.2.53:53", "[2001:db8::53]:53", "192.0.2.54:53"]);
    assert_eq!(servers_of("").0, ["127.0.0.1:53"]);
}

#[test]
fn a_server_at_a_network_interface_is_asked_there() {
    let text = "nameserver fe80::1%eth0\nnameserver fe80::2%3\n";
    assert_eq!(servers_of(text), (vec!["[fe80::1%7]:53".into(), "[fe80::2%3]:53".into()], Vec::new()));
}

#[test]
fn a_line_that_is_not_understood_is_reported_and_no_other_server_is_asked_for_it() {
    let (servers, problems) = servers_of("nameserver fe80::1%eth9\nnameserver nonsense\u{1b}\nnameserver\n");
    assert!(servers.is_empty());
    let expected = [
        "line 1: `fe80::1%eth9` names `eth9`, which is no network interface; it is not asked",
        "line 2: `nonsense\u{fffd}` is not an address; it is not asked",
        "line 3: `` is not an address; it is not asked",
    ];
    assert_eq!(problems, expected);
}

fn name(text: &str) -> DnsName {
    DnsName::of_labels(text).unwrap()
}

/// Notes a response, or silence while this number of names is asked for, each of another service.
fn note(servers: &mut Servers, of: SocketAddr, (name, count): (&DnsName, usize), has_responded: bool, now: Moment) {
    if has_responded {
        return servers.note_response(of);
    }
    servers.note_silence(of, (name, &asking(count, count, |name| Some(name.to_owned()))), now);
}

/// This number of names and services. The function says which service has a name.
fn asking(names: usize, services: usize, service_of: impl Fn(&str) -> Option<String> + 'static) -> Asking<'static> {
    let services_of = move |name: &DnsName| {
        let service = service_of(name.as_str()).map(|service| ServiceName::new("shop", &service));
        service.into_iter().collect()
    };
    Asking { names, services, services_of: Box::new(services_of) }
}

#[test]
fn a_name_that_is_not_asked_for_any_more_is_no_evidence() {
    let [a, b]: [SocketAddr; 2] = ["192.0.2.1:53", "192.0.2.2:53"].map(|text| text.parse().unwrap());
    let mut servers = Servers::default();
    servers.set(&[a, b]);
    note(&mut servers, a, (&name("target.example"), 3), false, Moment(0));
    let without = asking(2, 2, |name| (name != "target.example").then(|| name.to_owned()));
    servers.note_silence(a, (&name("web.example"), &without), Moment(0));
    servers.note_silence(a, (&name("target.example"), &without), Moment(0));
    assert_eq!(servers.in_order(Moment(1)), [a, b]);
}

#[test]
fn the_names_of_one_service_are_no_evidence_for_the_others() {
    let [a, b]: [SocketAddr; 2] = ["192.0.2.1:53", "192.0.2.2:53"].map(|text| text.parse().unwrap());
    let mut servers = Servers::default();
    servers.set(&[a, b]);
    let of_two = |name: &str| Some(if name.starts_with("target") { "targets" } else { "web" }.to_owned());
    for n in 0..100 {
        let target = name(&format!("target{n}.example"));
        servers.note_silence(a, (&target, &asking(101, 2, of_two)), Moment(0));
        assert_eq!(servers.in_order(Moment(1)), [a, b]);
    }
    servers.note_silence(a, (&name("web.example"), &asking(101, 2, of_two)), Moment(0));
    assert_eq!(servers.in_order(Moment(1)), [b, a], "it is silent about both");
    servers.note_response(a);
    for n in 0..MAX_SILENT {
        let target = name(&format!("target{n}.example"));
        servers.note_silence(a, (&target, &asking(100, 1, of_two)), Moment(2));
    }
    assert_eq!(servers.in_order(Moment(3)), [b, a], "there is no other service");
}

#[test]
fn a_server_that_does_not_respond_is_asked_last_for_a_while() {
    let [a, b]: [SocketAddr; 2] = ["192.0.2.1:53", "192.0.2.2:53"].map(|text| text.parse().unwrap());
    let (mut servers, web) = (Servers::default(), name("web.example"));
    servers.set(&[a, b]);
    note(&mut servers, a, (&web, 1), false, Moment(0));
    servers.set(&[a, b]);
    assert_eq!(servers.in_order(Moment(1)), [b, a]);
    assert_eq!(servers.in_order(Moment(LAST_FOR)), [a, b]);
    note(&mut servers, b, (&web, 1), false, Moment(1));
    assert_eq!(servers.in_order(Moment(2)), [a, b], "all of them are asked");
    note(&mut servers, a, (&web, 1), true, Moment(2));
    assert_eq!(servers.in_order(Moment(3)), [a, b]);
}

#[test]
fn a_server_is_not_asked_last_for_some_names_without_a_response() {
    let [a, b]: [SocketAddr; 2] = ["192.0.2.1:53", "192.0.2.2:53"].map(|text| text.parse().unwrap());
    let mut servers = Servers::default();
    servers.set(&[a, b]);
    for _ in 0..100 {
        note(&mut servers, a, (&name("one.example"), 3), false, Moment(0));
        note(&mut servers, a, (&name("two.example"), 3), false, Moment(0));
    }
    assert_eq!(servers.in_order(Moment(1)), [a, b]);
    note(&mut servers, a, (&name("three.example"), 3), false, Moment(1));
    assert_eq!(servers.in_order(Moment(2)), [b, a], "it is silent about all of them");
    // Of many names, a few are enough; a response to any begins again.
    note(&mut servers, a, (&name("three.example"), 3), true, Moment(2));
    for n in 1..MAX_SILENT {
        note(&mut servers, a, (&name(&format!("n{n}.example")), 10_000), false, Moment(3));
    }
    assert_eq!(servers.in_order(Moment(4)), [a, b]);
    note(&mut servers, a, (&name("last.example"), 10_000), false, Moment(5));
    assert_eq!(servers.in_order(Moment(6)), [b, a]);
}
