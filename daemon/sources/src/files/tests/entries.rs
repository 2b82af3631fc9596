use nodelb_core::model::service::BackendState;
use proptest::prelude::*;

use super::*;

mod health_check;

fn read_text(text: &str) -> Result<FileContent, Vec<Problem>> {
    read(text, &"web.toml".into())
}

fn problems(text: &str) -> Vec<String> {
    read_text(text).unwrap_err().iter().map(Problem::to_string).collect()
}

/// A service in one line, followed by its ports and their backends.
fn summary(text: &str) -> Vec<String> {
    let content = read_text(text).unwrap();
    let services = content.services.iter().flat_map(|found| {
        let name = found.value.name.clone();
        found.value.ports.clone().into_iter().map(move |port| {
            let fronts: Vec<_> = port.frontends.iter().map(|f| f.l4(port.protocol).to_string()).collect();
            format!("{name} {}/{} at {}", port.name, port.protocol, fronts.join(" "))
        })
    });
    let slices = content.slices.iter().flat_map(|found| {
        let slice = found.value.clone();
        slice.ports.clone().into_iter().map(move |port| {
            let backends: Vec<_> = port.backends.iter().map(|b| format!("{}:{}", b.addr, b.port)).collect();
            format!("{} of {} {}/{} to {}", slice.name, slice.service, port.name, port.protocol, backends.join(" "))
        })
    });
    services.chain(slices).collect()
}

#[test]
fn a_service_with_everything() {
    let content = read_text(
        r#"
# a comment
[[service]]
name = "shop/web"
frontends = ["198.51.100.10:80/TCP", "[2001:db8::10]:80"]
backends = [
  "192.0.2.11:8080",
  { address = "192.0.2.12:8080", weight = 3, node = " Node-1 ", zone = "zone-a", state = "maintenance" },
  { address = "[2001:db8::1]:8080", weight = 0, node = "", state = "active" },
]
session-affinity = "client-ip"
session-affinity-timeout = "1h30m"
internal-traffic-policy = "local"
external-traffic-policy = "cluster"
outside = true
"#,
    )
    .unwrap();
    let found = &content.services[0];
    assert_eq!(found.line, Some(3));
    let service = &found.value;
    assert_eq!(service.name, ServiceName::new("shop", "web"));
    assert_eq!((service.source, service.created, service.affinity_seconds), (Source::Files, None, Some(5400)));
    assert_eq!(service.internal_policy, TrafficPolicy::Local);
    assert_eq!(service.external_policy, TrafficPolicy::Cluster);
    assert!(service.is_outside);
    assert_eq!(&*service.origin.object, "web.toml");
    assert_eq!(service.ports.len(), 1);
    assert!(service.ports[0].frontends.iter().all(|frontend| frontend.kind == FrontendKind::Static));
    let backends = &content.slices[0].value.ports[0].backends;
    assert_eq!(backends[0], Backend::new("192.0.2.11".parse().unwrap(), 8080));
    assert_eq!((backends[1].weight, backends[1].state), (3, BackendState::Maintenance));
    assert_eq!((backends[1].node.as_deref(), backends[1].zone.as_deref()), (Some("node-1"), Some("zone-a")));
    assert_eq!((backends[2].weight, backends[2].node.as_deref()), (0, None));
    assert_eq!(content.slices[0].value.name, SliceName::new("shop", "file:web"));
    assert!(content.notices.is_empty());
}

#[test]
fn frontends_of_two_protocols_are_two_ports_with_the_same_backends() {
    let text = r#"
        [[service]]
        name = "kube-system/dns"
        frontends = ["198.51.100.53:53/UDP", "198.51.100.53:53/TCP"]
        backends = ["192.0.2.1:53"]
    "#;
    assert_eq!(
        summary(text),
        [
            "kube-system/dns /TCP at 198.51.100.53:53/TCP",
            "kube-system/dns /UDP at 198.51.100.53:53/UDP",
            "kube-system/file:dns of kube-system/dns /TCP to 192.0.2.1:53",
            "kube-system/file:dns of kube-system/dns /UDP to 192.0.2.1:53",
        ]
    );
}

#[test]
fn several_ports_each_have_their_own_frontends_and_backends() {
    let text = r#"
        [[service]]
        name = "shop/web"
        session-affinity = "none"
        [[service.port]]
        name = "http"
        frontends = ["198.51.100.10:80"]
        backends = ["192.0.2.11:8080"]
        [[service.port]]
        name = "https"
        frontends = ["198.51.100.10:443"]
        backends = []

        [[service]]
        name = "shop/api"
        frontends = ["198.51.100.11:80"]
    "#;
    assert_eq!(
        summary(text),
        [
            "shop/web http/TCP at 198.51.100.10:80/TCP",
            "shop/web https/TCP at 198.51.100.10:443/TCP",
            "shop/api /TCP at 198.51.100.11:80/TCP",
            "shop/file:web of shop/web http/TCP to 192.0.2.11:8080",
        ]
    );
    let service = &read_text(text).unwrap().services[0].value;
    assert_eq!((service.affinity_seconds, service.is_outside), (None, false));
}

#[test]
fn an_empty_file_has_no_services() {
    assert_eq!(read_text(""), Ok(FileContent::default()));
    assert_eq!(read_text("# soon\n"), Ok(FileContent::default()));
    assert_eq!(read_text("service = []\n"), Ok(FileContent::default()));
}

#[test]
fn affinity_lasts_three_hours_unless_said_otherwise() {
    let affinity = |line: &str| {
        let text = format!(
            "[[service]]\nname = \"a/b\"\nfrontends = [\"198.51.100.1:1\"]\nsession-affinity = \"client-ip\"\n{line}"
        );
        read_text(&text).unwrap().services[0].value.affinity_seconds
    };
    assert_eq!(affinity(""), Some(10_800));
    assert_eq!(affinity("session-affinity-timeout = 90"), Some(90));
    assert_eq!(affinity("session-affinity-timeout = \"1d\""), Some(86_400));
}

#[test]
fn an_affinity_timeout_without_affinity_is_refused() {
    let text = "[[service]]\nname = \"a/c\"\nfrontends = [\"198.51.100.1:1\"]\nsession-affinity-timeout = 90\n";
    let expected = "line 4: service a/c: session-affinity-timeout has no effect without session-affinity = \
                    \"client-ip\"; add that";
    assert_eq!(problems(text), [expected]);
}

#[test]
fn all_problems_of_a_file_are_reported_with_service_and_line() {
    let text = r#"[[service]]
name = "shop"
frontends = ["198.51.100.10:80"]
[[service]]
frontends = []
[[service]]
name = "a/b"
frontnds = ["198.51.100.1:80"]
[[service]]
name = "a/c"
frontends = ["198.51.100.1:80", "198.51.100.1:80/TCP", "0.0.0.0:80", "198.51.100.1", "198.51.100.1:0", "198.51.100.1:1/ICMP"]
backends = [
  "192.0.2.1:80",
  "192.0.2.1:80/TCP",
  "224.0.0.1:80",
  "[::]:80",
  "192.0.2.1:0",
  { weight = 70000, stat = "x" },
  5,
]
session-affinity = "cookie"
session-affinity-timeout = "0s"
internal-traffic-policy = "Local"
[services]
"#;
    let found = problems(text);
    let expected = [
        "line 2: service: name: `shop` is not a service name (expected namespace/name, each of letters, digits, `-`, `_` and `.`)",
        "line 4: service: has no name; add name = \"namespace/name\"",
        "line 4: service: has no frontends; add frontends = [\"ADDRESS:PORT/PROTOCOL\"]",
        "line 6: service a/b: has no frontends; add frontends = [\"ADDRESS:PORT/PROTOCOL\"]",
        "line 8: service a/b: unknown key `frontnds`; did you mean `frontends`?",
        "line 11: service a/c: frontend 198.51.100.1:80/TCP is listed twice; remove one",
        "line 11: service a/c: frontends: `0.0.0.0:80` is the unspecified address, not that of a host; a frontend is an address that clients connect to",
        "line 11: service a/c: frontends: `198.51.100.1` is not an address with a port (expected like 192.0.2.7:80 or [2001:db8::7]:80)",
        "line 11: service a/c: frontends: `198.51.100.1:0` has port 0, to which no client can connect",
        "line 11: service a/c: frontends: `ICMP` is not a protocol (expected TCP, UDP or SCTP)",
        "line 14: service a/c: backends: `192.0.2.1:80/TCP` has a protocol; a backend has that of its frontends: remove the protocol",
        "line 15: service a/c: backends: `224.0.0.1:80` is a multicast or broadcast address, not that of a host; a backend is an address that connections reach",
        "line 16: service a/c: backends: `[::]:80` is the unspecified address, not that of a host; a backend is an address that connections reach",
        "line 17: service a/c: backends: `192.0.2.1:0` has port 0, to which no client can connect",
        "line 18: service a/c: backends: has no address; add address = \"ADDRESS:PORT\"",
        "line 18: service a/c: backends.weight: 70000 is not in 0..=65535",
        "line 18: service a/c: unknown key `backends.stat`; did you mean `state`?",
        "line 19: service a/c: backends: expected a string such as \"192.0.2.11:8080\" or \"web.example.com:8080\", or a table, found an integer",
        "line 21: service a/c: session-affinity: `cookie` is not one of the choices (expected \"none\" or \"client-ip\")",
        "line 22: service a/c: session-affinity-timeout: `0s` is not a duration from 1s to 365d, in multiples of 1s (such as \"10s\", \"1h30m\", or seconds as a number)",
        "line 23: service a/c: internal-traffic-policy: `Local` is not one of the choices (expected \"cluster\" or \"local\")",
        "line 24: unknown key `services`; did you mean `service`?",
    ];
    let mut found_sorted = found.clone();
    let mut expected_sorted = expected.to_vec();
    found_sorted.sort();
    expected_sorted.sort_unstable();
    assert_eq!(found_sorted, expected_sorted);
    assert_eq!(found[0], expected[0]);
}

#[test]
fn what_is_listed_twice_is_refused() {
    let text = r#"[[service]]
name = "a/b"
frontends = ["198.51.100.1:80", "198.51.100.1:80/UDP",
  "198.51.100.1:80/TCP"]
backends = ["192.0.2.1:80",
  { address = "192.0.2.1:80", weight = 2 }]
"#;
    assert_eq!(
        problems(text),
        [
            "line 4: service a/b: frontend 198.51.100.1:80/TCP is listed twice; remove one",
            "line 6: service a/b: backend 192.0.2.1:80 is listed twice; remove one, or use weight",
        ]
    );
}

#[test]
fn ports_must_be_distinguishable() {
    let text = r#"[[service]]
name = "a/b"
frontends = ["198.51.100.1:1"]
[[service.port]]
frontends = ["198.51.100.1:80"]
[[service.port]]
name = "x"
frontends = ["198.51.100.1:81"]
[[service.port]]
name = "x"
nam = "y"
frontends = ["198.51.100.1:80"]
"#;
    assert_eq!(
        problems(text),
        [
            "line 3: service a/b: has [[service.port]] tables: move frontends, backends and backends-from into those",
            "line 4: service a/b: has several ports, so each needs a name; add name = \"…\" to this one",
            "line 9: service a/b: has two ports named `x`; rename one, or merge them",
            "line 11: service a/b: unknown key `port.nam`; did you mean `name`?",
            "line 12: service a/b: frontend 198.51.100.1:80/TCP is listed twice; remove one",
        ]
    );
}

#[test]
fn a_frontend_of_a_family_without_backends_is_refused_if_there_are_others() {
    let text = r#"[[service]]
name = "a/b"
frontends = ["198.51.100.1:80", "[2001:db8::10]:80"]
backends = ["192.0.2.1:80"]
"#;
    assert_eq!(
        problems(text),
        ["line 3: service a/b: frontend [2001:db8::10]:80/TCP has no IPv6 backend; add one, or remove the frontend"]
    );
    assert!(read_text(&text.replace("192.0.2.1:80", "")).is_err());
    assert!(read_text(&text.replace("\"192.0.2.1:80\"", "")).is_ok());
}

#[test]
fn ipv4_frontends_may_have_ipv6_backends_in_tunnels() {
    let text = |more: &str, backend: &str| {
        format!(
            "[[service]]\nname = \"a/b\"\noutside = true\n{more}\nfrontends = [\"198.51.100.1:80\", \
             \"[2001:db8::10]:80\"]\nbackends = [\"{backend}\"]\n"
        )
    };
    let (tunnel, v6) = ("forward = \"tunnel\"", "[2001:db8:b::1]:80");
    assert!(read_text(&text(tunnel, v6)).is_ok());
    let without = |family: &str, frontend: &str| {
        let end = format!("has no {family} backend; add one, or remove the frontend");
        [format!("line 5: service a/b: frontend {frontend}:80/TCP {end}")]
    };
    assert_eq!(problems(&text(tunnel, "192.0.2.1:80")), without("IPv6", "[2001:db8::10]"));
    for more in ["", "forward = \"direct\"", "forward = \"tunnel\"; external-traffic-policy = \"local\""] {
        let lines = more.replace("; ", "\n");
        let found = problems(&text(&lines, v6));
        assert!(found.len() == 1 && found[0].contains("198.51.100.1:80/TCP has no IPv4 backend"), "{more}: {found:?}");
    }
}

#[test]
fn syntax_errors_are_reported_alone() {
    let found = problems("[[service]]\nname = \n\n[[service]]\nfrontends = [\n");
    assert!(!found.is_empty());
    assert!(found.iter().all(|problem| problem.contains("not valid TOML")), "{found:?}");
}

#[test]
fn wrong_types_are_reported() {
    assert_eq!(problems("service = 1\n"), ["line 1: service: expected an array, found an integer"]);
    let found = problems("[[service]]\nname = 1\nport = 2\nfrontends = \"x\"\nbackends = {}\n");
    assert_eq!(
        found,
        [
            "line 2: service: name: expected a string, found an integer",
            "line 3: service: port: expected an array, found an integer",
            "line 4: service: frontends: expected an array, found a string",
            "line 5: service: backends: expected an array, found a table",
        ]
    );
}

#[test]
fn every_wrong_shape_is_a_problem() {
    for text in [
        "service = [[]]\n",
        "[service.frontends]\n",
        "[[service]]\nname.first = \"a/b\"\nfrontends = [\"198.51.100.1:80\"]\n",
        "[[service]]\nname = \"a/b\"\nfrontends = [\"198.51.100.1:80\"]\nbackends = [[[\"192.0.2.1:80\"]]]\n",
        "[[service]]\nname = \"a/b\"\nfrontends = [\"198.51.100.1:80\"]\nport = [[]]\n",
        "[[service]]\nname = \"a/b\"\nfrontends = [\"198.51.100.1:80\"]\nhealth-check = [\"tcp\"]\n",
    ] {
        assert!(!problems(text).is_empty(), "{text}");
    }
}

/// Each problem removes something from the document, so that reading ends.
#[test]
fn no_text_is_read_without_end() {
    let text = "[[service]]\nname = \"a/b\"\n[[service.port]]\nname = \"x\"\nfrontends = [\"198.51.100.1:80\"]\n\
                backends = [\"192.0.2.1:80\", { address = \"b.example:80\", weight = 2 }]\n\
                backends-from = \"srv:_a._tcp.b.example\"\n\
                [service.health-check]\ntype = \"tcp\"\ntimeout = \"1s\"\n";
    for at in 0..text.len() {
        for inserted in
            ["[", "]", "{", "}", "\"", "1", ".", "=", "\n[[service]]\n", "\na.b = 1\n", "\n[service.port.a]\n"]
        {
            let changed = format!("{}{inserted}{}", &text[..at], &text[at..]);
            if let Err(found) = read_text(&changed) {
                assert!(!found.is_empty() && found.len() <= 100, "{changed}: {found:?}");
            }
        }
    }
}

#[test]
fn a_large_file_is_read_in_reasonable_time() {
    let services = (0..20_000).map(|i| {
        format!(
            "[[service]]\nname = \"ns/s{i}\"\nfrontends = [\"198.51.{}.{}:80\"]\nbackends = [\"192.0.2.1:80\"]\n",
            i / 256,
            i % 256
        )
    });
    let text: String = services.collect();
    let content = read_text(&text).unwrap();
    assert_eq!((content.services.len(), content.slices.len()), (20_000, 20_000));
    assert_eq!(content.services[19_999].line, Some(19_999 * 4 + 1));
}

#[test]
fn backends_with_names_become_questions() {
    let content = read_text(
        r#"
[[service]]
name = "shop/web"
frontends = ["198.51.100.10:80/TCP", "[2001:db8::10]:80/UDP"]
backends = ["192.0.2.11:8080", "Web.example.com.:8080", { address = "spare.example.com:81", weight = 0 }]
backends-from = "srv:_http._tcp.web.service.consul"
"#,
    )
    .unwrap();
    assert_eq!(content.slices.len(), 1);
    let questions: Vec<_> =
        content.named.iter().map(|named| format!("{} {}", named.question, named.backend.port)).collect();
    assert_eq!(
        questions,
        [
            "A web.example.com 8080",
            "AAAA web.example.com 8080",
            "A spare.example.com 81",
            "AAAA spare.example.com 81",
            "SRV _http._tcp.web.service.consul 0",
        ]
    );
    let slices: BTreeSet<_> = content.named.iter().map(|named| &named.slice).collect();
    assert_eq!(slices.len(), content.named.len(), "each question has its own slice");
    assert_eq!(content.named[2].backend.weight, 0);
    assert_eq!(content.named[0].protocols, [Protocol::Tcp, Protocol::Udp]);
    let only_v4 =
        "[[service]]\nname = \"a/b\"\nfrontends = [\"198.51.100.10:80\"]\nbackends = [\"web.example.com:80\"]\n";
    assert_eq!(read_text(only_v4).unwrap().named.len(), 1);
}

#[test]
fn a_refused_name_of_a_backend_has_its_line_and_the_remedy() {
    let text = r#"
[[service]]
name = "shop/web"
frontends = ["198.51.100.10:80"]
backends = [
  "web.example.com",
  "web.example.com:0",
  "web:80",
  "web.example.com:80/TCP",
  "w b.example:80",
  "a.example:80", "A.example.:80",
]
backends-from = "_http._tcp.web.example"
"#;
    let found = problems(text);
    for (line, problem) in [
        ("line 6", "has no port from 1 to 65535; write it like web.example.com:8080"),
        ("line 7", "has no port from 1 to 65535"),
        ("line 8", "search domains are not applied"),
        ("line 9", "has a protocol"),
        ("line 10", "is not a letter, a digit"),
        ("line 13", "must begin with srv:"),
    ] {
        assert!(found.iter().any(|it| it.contains(line) && it.contains(problem)), "{line}: {problem}: {found:#?}");
    }
    let twice =
        text.lines().filter(|line| !line.contains("web") || line.contains("name")).collect::<Vec<_>>().join("\n");
    let twice = twice.replace("  \"w b.example:80\",\n", "");
    let found = problems(&twice);
    assert!(found.iter().any(|it| it.contains("backend a.example:80 is listed twice")), "{found:#?}");
}

proptest! {
    /// Arbitrary text instead of names is read, or refused with a line.
    #[test]
    fn arbitrary_names_are_read_or_refused(text in "[a-zA-Z0-9._:-]{0,80}|\\PC{0,300}|.{0,40}") {
        let shown: String = text.chars().filter(|c| !matches!(c, '"' | '\\') && !c.is_control()).collect();
        let file = format!(
            "[[service]]\nname = \"a/b\"\nfrontends = [\"198.51.100.1:80\"]\nbackends = [\"{shown}\", \"{shown}:80\"]\n\
             backends-from = \"srv:{shown}\"\n",
        );
        if let Err(problems) = read_text(&file) {
            prop_assert!(problems.iter().all(|problem| problem.line.is_some()), "{:?}", problems);
        }
    }
}
