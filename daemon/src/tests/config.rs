use std::collections::BTreeSet;

use super::*;

#[path = "config/reference.rs"]
mod reference;

const EXAMPLE_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config.example.toml");

fn problems(text: &str) -> Vec<String> {
    Config::parse(text).unwrap_err().iter().map(Problem::to_string).collect()
}

/// `config.example.toml` has every key, at its default, with the comment that documents it. `UPDATE=1` rewrites it.
#[test]
fn the_example_is_the_defaults() {
    let expected = Config::default().to_toml();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(EXAMPLE_PATH, &expected).unwrap();
    }
    let example = std::fs::read_to_string(EXAMPLE_PATH).unwrap();
    assert_eq!(example, expected, "run this test with UPDATE=1 to rewrite config.example.toml");
    assert_eq!(Config::parse(&example), Ok(Config::default()));
}

#[test]
fn every_key_of_the_example_is_read() {
    for key in Config::default().keys() {
        let text = format!("[{}]\n{} = {}\n", key.section, key.name, key.value);
        assert_eq!(Config::parse(&text), Ok(Config::default()), "{text}");
        let wrong = format!("[{}]\n{} = 1.5\n", key.section, key.name);
        assert!(problems(&wrong)[0].starts_with(&format!("line 2: {}.{}: expected ", key.section, key.name)));
        assert!(!key.comment.is_empty());
    }
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(Config::parse(""), Ok(Config::default()));
    assert_eq!(Config::parse("# nothing\n[node]\n"), Ok(Config::default()));
}

#[test]
fn every_key_can_be_set_and_printed_again() {
    let text = r#"
        [node]
        name = "node-1"
        zone = "zone-a"
        nodeport-addresses = ["primary", "loopback", "192.0.2.0/24", "2001:db8::1"]
        [files]
        directory = "/srv/services \"new\""
        [kubernetes]
        kubeconfig = "/etc/nodelb/kubeconfig"
        proxy = "http://192.0.2.9:3128"
        service-cidrs = ["10.96.0.0/12"]
        healthz-addresses = ["192.0.2.1:10256", "[2001:db8::1]:10256"]
        [[kubernetes.apiserver]]
        address = "192.0.2.1:6443"
        tls-server-name = "kubernetes"
        [[kubernetes.apiserver]]
        address = "api.example.com:443"
        [state]
        directory = "/srv/state"
        [admin]
        listen = ["127.0.0.5:1"]
        socket = "/run/nodelb/test.sock"
        [datapath]
        mode = "memory"
        cgroup = "/sys/fs/cgroup/test"
        pin-directory = "/sys/fs/bpf/test"
        max-frontends = 3
        max-services = 2
        max-slots = 0x10
        max-affinity = 1_000
        bypass = ["192.0.2.0/24", "2001:db8::7", "::ffff:192.0.2.9"]
        external-ips = ["203.0.113.0/24", "2001:db8::/32"]
        own-addresses = ["203.0.113.9", "2001:db8::/64"]
        nodeport-range = "1-65535"
        [log]
        level = "trace"
    "#;
    let config = Config::parse(text).unwrap();
    assert_eq!(
        config.limits(),
        Limits { frontends: 3, services: 2, slots: 16, affinity: 1000, outside: 16_384, source_ranges: 16_384 }
    );
    assert_eq!(config.datapath.cgroup(), Some(Path::new("/sys/fs/cgroup/test")));
    assert_eq!(config.datapath.nodeport_range, 1..=65_535);
    assert_eq!(config.datapath.bypass[1].to_string(), "2001:db8::7/128");
    assert_eq!(config.datapath.bypass[2].to_string(), "192.0.2.9/32");
    assert_eq!(config.datapath.own_addresses[0].to_string(), "203.0.113.9/32");
    assert_eq!(config.log.level, tracing::Level::TRACE);
    assert_eq!(Config::parse(&config.to_toml()), Ok(config));
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = r#"[node]
naem = "x"
nodeport-addresses = ["all"]
[files]
directory = "services.d"
[admin]
listen = ["0.0.0.0:9890"]
[datapath]
mode = "magic"
max_slots = 5
max-services = 1
bypass = ["192.0.2.1/24",
  "nonsense"]
nodeport-range = "9-1"
[log]
level = "INFO"
[kubernets]
[datapath.extra]
"#;
    let found = problems(text);
    let expected = [
        "line 2: unknown key `node.naem`; did you mean `name`?",
        "line 3: node.nodeport-addresses: `all` is not an address or CIDR (expected like 192.0.2.7 or 192.0.2.0/24), or \
         \"primary\", or \"loopback\"",
        "line 5: files.directory: `services.d` must be an absolute path",
        "line 7: admin.listen: 0.0.0.0:9890 is not a loopback address; the admin API is for this host only: use 127.0.0.1",
        "line 9: datapath.mode: `magic` is not one of the choices (expected \"kernel\" or \"memory\")",
        "line 10: unknown key `datapath.max_slots`; did you mean `max-slots`?",
        "line 11: datapath.max-services: 1 is not in 2..=16777216",
        "line 12: datapath.bypass: `192.0.2.1/24` has bits set beyond its prefix length; write 192.0.2.0/24",
        "line 13: datapath.bypass: `nonsense` is not an address or CIDR (expected like 192.0.2.7 or 192.0.2.0/24)",
        "line 14: datapath.nodeport-range: `9-1` is not a port range (expected FIRST-LAST, such as 30000-32767)",
        "line 16: log.level: `INFO` is not a log level (expected \"error\", \"warn\", \"info\", \"debug\" or \"trace\")",
        "line 17: unknown key `kubernets`; did you mean `kubernetes`?",
        "line 18: unknown key `datapath.extra`; known here: mode, cgroup, pin-directory, max-frontends, max-services, \
         max-slots, max-affinity, bypass, external-ips, own-addresses, nodeport-range, \
         protect-nodeports, count-connections, disconnect, disconnect-after",
    ];
    assert_eq!(found, expected);
}

#[test]
fn everybodys_pin_directory_is_refused() {
    for everybodys in ["/sys/fs/bpf", "/sys/fs/bpf/", "/sys/fs/bpf/."] {
        let expected = "line 2: datapath.pin-directory: `/sys/fs/bpf` is shared with other programs; name a directory in it, such as \
                        `/sys/fs/bpf/nodelb`";
        assert_eq!(problems(&format!("[datapath]\npin-directory = \"{everybodys}\"\n")), [expected]);
    }
    assert!(Config::parse("[datapath]\npin-directory = \"/sys/fs/bpf2\"\n").is_ok());
}

#[test]
fn a_section_must_be_a_table() {
    assert_eq!(problems("node = 1\n"), ["line 1: node: expected a table, found an integer"]);
}

#[test]
fn syntax_errors_and_unknown_keys_are_reported_together() {
    let found = problems("[node]\nname = \nzoen = \"a\"\n");
    assert!(found.iter().any(|p| p.starts_with("line 2: not valid TOML")), "{found:?}");
    assert!(found.iter().any(|p| p.starts_with("line 3: unknown key `node.zoen`")), "{found:?}");
}

#[test]
fn only_the_default_file_may_be_missing() {
    let scratch = tempfile::tempdir().unwrap();
    let missing = scratch.path().join("missing.toml");
    let absence = Some(format!("no {}", missing.display()));
    assert_eq!(Config::load_or_default(None, &missing), Ok((Config::default(), absence)));
    let error = Config::load_or_default(Some(&missing), &missing).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot read the configuration: ", missing.display())), "{error}");

    let present = scratch.path().join("nodelb.toml");
    std::fs::write(&present, "[log]\nlevel = 3\n[nodes]\n").unwrap();
    let error = Config::load(Some(&present)).unwrap_err().to_string();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], format!("{}:2: log.level: expected a string, found an integer", present.display()));
    assert_eq!(lines[1], format!("{}:3: unknown key `nodes`; did you mean `node`?", present.display()));
}

#[test]
fn changes_that_need_a_restart_are_named() {
    let old = Config::default();
    let mut new = old.clone();
    new.log.level = tracing::Level::DEBUG;
    new.node.zone = "b".into();
    new.files.directory = "/srv".into();
    assert_eq!(old.restart_keys(&new), [""; 0]);
    new.datapath.max_slots += 1;
    new.admin.listen.pop();
    assert_eq!(old.restart_keys(&new), ["admin.listen", "datapath.max-slots"]);
    assert_eq!(old.restart_keys(&old), [""; 0]);
}

#[test]
fn key_names_are_unique() {
    let keys = Config::default().keys();
    let names: BTreeSet<_> = keys.iter().map(|key| (key.section, key.name.clone())).collect();
    assert_eq!(names.len(), keys.len());
}

/// nodelb.toml(5) has an entry for every key, with its default.
#[test]
fn the_man_page_lists_every_key_at_its_default() {
    let page = include_str!("../../../contrib/man/nodelb.toml.5");
    for key in Config::default().keys() {
        let entry = format!("\\fB{}\\fR = {} ", key.name.replace('-', "\\-"), key.value.replace('-', "\\-"));
        assert!(page.lines().any(|line| line.starts_with(&entry)), "no line that starts with `{entry}`");
    }
}

/// Values other than the defaults that are valid alone; some pairs are not.
const ALTERNATIVES: &[(&str, &str, &str)] = &[
    ("dns", "min-ttl", "\"2h\""),
    ("dns", "min-ttl", "\"1h\""),
    ("dns", "max-ttl", "\"1s\""),
    ("dns", "max-ttl", "\"3h\""),
    ("dns", "hold", "\"forever\""),
    ("kubernetes", "enabled", "false"),
    ("kubernetes", "kubeconfig", "\"/etc/kubeconfig\""),
    ("kubernetes", "token-file", "\"/etc/token\""),
    ("kubernetes", "ca-file", "\"/etc/ca\""),
    ("kubernetes", "service-cidrs", "[\"192.0.2.0/24\"]"),
    ("kubernetes", "apiserver", "[{ address = \"192.0.2.1:6443\" }]"),
    ("packets", "mode", "\"off\""),
    ("packets", "mode", "\"on\""),
    ("packets", "devices", "[\"eth0\"]"),
    ("packets", "devices", "[]"),
    ("packets", "except", "[\"*\"]"),
    ("packets", "except", "[\"eth0\"]"),
    ("packets", "pod-devices", "[\"eth*\"]"),
    ("packets", "pod-devices", "[\"*\"]"),
    ("packets", "snat", "\"always\""),
    ("packets", "snat-ports", "\"31000-32000\""),
    ("packets", "max-connections", "1"),
    ("packets", "max-handshakes", "4194304"),
    ("datapath", "nodeport-range", "\"10000-29999\""),
    ("datapath", "max-frontends", "3"),
    ("datapath", "bypass", "[\"0.0.0.0/0\"]"),
    ("admin", "socket", "\"\""),
    ("admin", "listen", "[]"),
];

/// A key that is left out is the same as one that is written with its default, also where two keys do not go together:
/// the daemon would otherwise start with a combination that the check refuses.
#[test]
fn a_key_that_is_left_out_is_checked_like_its_default() {
    let all = Config::default().keys();
    let mut refused = 0;
    for (n, first) in ALTERNATIVES.iter().enumerate() {
        for second in &ALTERNATIVES[n..] {
            let is_same_key = |a: &(&str, &str, &str), b: &(&str, &str, &str)| (a.0, a.1) == (b.0, b.1);
            if first != second && is_same_key(first, second) {
                continue;
            }
            let set: BTreeSet<_> = [first, second].into();
            let (mut sparse, mut full) = (String::new(), String::new());
            for key in &all {
                if !full.contains(&format!("[{}]\n", key.section)) {
                    sparse.push_str(&format!("[{}]\n", key.section));
                    full.push_str(&format!("[{}]\n", key.section));
                }
                let other = set.iter().find(|it| (it.0, it.1) == (key.section, &*key.name)).map(|it| it.2);
                full.push_str(&format!("{} = {}\n", key.name, other.unwrap_or(&key.value)));
                sparse.extend(other.map(|value| format!("{} = {value}\n", key.name)));
            }
            let count = |text: &str| Config::parse(text).map_or_else(|problems| problems.len(), |_| 0);
            assert_eq!(count(&sparse), count(&full), "{first:?} with {second:?}:\n{sparse}");
            refused += usize::from(count(&sparse) > 0);
        }
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn a_problem_with_a_default_names_it_and_the_place_of_the_section() {
    assert_eq!(
        problems("\n[dns]\nmin-ttl = \"2h\"\n"),
        [
            "line 2: dns.max-ttl (not set; its default is \"1h\"): is shorter than dns.min-ttl; raise it, or lower the other"
        ]
    );
    assert_eq!(
        problems("packets.except = [\"*\"]\n"),
        ["line 1: packets.devices (not set; its default is [\"auto\"]): `auto` is excluded by `*` in packets.except; \
             remove one of the two"]
    );
}
