//! Programs of another owner at the same hooks, which translate as those of a network plugin do
//! (`clients/translator.bpf.c`): the first of two that know an address translates it, clients see the address that they
//! connected to, and neither breaks connections of the other. nodelb names the programs.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Output};

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, Program};
use nodelb_datapath::LAYOUT;
use nodelb_prober::{Backend, Kept, Transport};

use crate::host::{Host, NODELB, connect, errno, eventually, frontend, get, service, socket};
use crate::sandbox::{self, Sandbox, command};

const TRANSPORTS: [Transport; 3] = [Transport::TcpLines, Transport::Udp, Transport::UdpUnconnected];
/// The addresses of three services, each with one that an IPv6 socket uses for the IPv4 service.
const OWN: [&str; 3] = ["198.51.100.10:80", "[2001:db8:f::10]:80", "[::ffff:198.51.100.10]:80"];
const OTHER: [&str; 3] = ["198.51.100.20:80", "[2001:db8:f::20]:80", "[::ffff:198.51.100.20]:80"];
const BOTH: [&str; 3] = ["198.51.100.30:80", "[2001:db8:f::30]:80", "[::ffff:198.51.100.30]:80"];
/// Services without backends: of both, and with one in nodelb.
const REFUSED: &str = "198.51.100.40:80";
const HALF_REFUSED: &str = "198.51.100.41:80";
/// The backends of nodelb's services, and of those of the other programs.
const NODELBS: [&str; 2] = ["192.0.2.11:8080", "[2001:db8:b::11]:8080"];
const OTHERS: [&str; 2] = ["192.0.2.12:8080", "[2001:db8:b::12]:8080"];

/// An address as the hooks of the other programs have it.
fn place(at: &str) -> [u8; 20] {
    let at: SocketAddr = at.parse().unwrap();
    let address = match at.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&address.octets());
    bytes[16..18].copy_from_slice(&at.port().to_be_bytes());
    bytes
}

/// The other programs, while they are attached.
struct Programs {
    _links: Vec<Link>,
    object: Object,
}

impl Programs {
    /// Attaches them by links, as Cilium does.
    fn attach(host: &Host, sandbox: &Sandbox) -> Self {
        let object = host.path("translator.o");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/translator.bpf.c");
        let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
        let [from, to] = [&source, &object].map(|path| path.to_str().unwrap());
        command("clang", &["-target", "bpf", "-g", "-O2", "-Wall", "-Werror", &headers, "-c", "-o", to, from]);
        let object = ObjectBuilder::default().open_file(&object).unwrap().load().unwrap();
        let services = object.maps().find(|map| map.name() == "services").unwrap();
        for (frontends, backends) in [(OTHER, OTHERS), (BOTH, OTHERS)] {
            for (frontend, backend) in frontends.into_iter().zip(backends) {
                services.update(&place(frontend), &place(backend), MapFlags::ANY).unwrap();
            }
        }
        for refused in [REFUSED, HALF_REFUSED] {
            services.update(&place(refused), &[0; 20], MapFlags::ANY).unwrap();
        }
        let cgroup = File::open(&sandbox.cgroup).unwrap();
        let sockets = object.progs_mut().filter(|program| program.name() != "other_packets");
        let links = sockets.map(|program| program.attach_cgroup(cgroup.as_raw_fd()).unwrap()).collect();
        Self { _links: links, object }
    }

    /// The id of the program at a hook.
    fn id(&self, hook: &str) -> u32 {
        let name = format!("other_{hook}");
        let program = self.object.progs().find(|program| program.name() == name.as_str()).unwrap();
        Program::id_from_fd(program.as_fd()).unwrap()
    }
}

fn backends() -> Vec<Backend> {
    let both = |name: &str, at: &str| {
        let at = socket(at);
        Backend::start(name, &[(Transport::TcpLines, at), (Transport::Udp, at)]).unwrap()
    };
    let named = [("nodelb", NODELBS), ("other", OTHERS)];
    named.iter().flat_map(|(name, places)| places.map(|at| both(name, at))).collect()
}

/// Writes the service files of nodelb.
fn serve(host: &Host) {
    host.serve("own.toml", &service("shop/own", &OWN[..2], &NODELBS));
    host.serve("both.toml", &service("shop/both", &BOTH[..2], &NODELBS));
    host.serve("refused.toml", &service("shop/refused", &[REFUSED], &[]));
    host.serve("half.toml", &service("shop/half", &[HALF_REFUSED], &NODELBS[..1]));
}

/// New connections over each protocol reach this backend and see the address that they connected to as their peer;
/// without a backend they are not translated.
fn assert_reach(addresses: [&str; 3], backend: Option<&str>, when: &str) {
    for address in addresses {
        for transport in TRANSPORTS {
            match backend {
                Some(name) => {
                    let tally = connect(address, transport, 5);
                    assert_eq!(tally.failures(), 0, "{when}: {address} {transport:?}: {tally}");
                    assert_eq!(tally.answered.get(name), Some(&5), "{when}: {address} {transport:?}: {tally}");
                }
                None => assert_eq!(errno(address, transport), "ENETUNREACH", "{when}: {address} {transport:?}"),
            }
        }
    }
}

fn assert_all(own: Option<&str>, other: Option<&str>, both: Option<&str>, when: &str) {
    assert_reach(OWN, own, when);
    assert_reach(OTHER, other, when);
    assert_reach(BOTH, both, when);
}

/// Connections to the service of both that live throughout.
fn keep() -> Vec<Kept> {
    let open = |address: &str, transport| Kept::open(socket(address), transport, 2).unwrap();
    BOTH.iter().flat_map(|address| [Transport::TcpLines, Transport::Udp].map(|it| open(address, it))).collect()
}

fn assert_kept(kept: &mut [Kept], backend: &str, when: &str) {
    for (number, kept) in kept.iter_mut().enumerate() {
        kept.ask();
        let tally = kept.tally();
        assert_eq!(tally.failures(), 0, "{when}: {number}: {tally}");
        assert_eq!(tally.answered.keys().collect::<Vec<_>>(), [backend], "{when}: {number}");
    }
}

#[test]
fn programs_of_others_that_were_first_translate_what_both_know() {
    sandbox::run("other_programs::programs_of_others_that_were_first_translate_what_both_know", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        let programs = Programs::attach(&host, sandbox);
        assert_all(None, Some("other"), Some("other"), "without nodelb");
        let mut kept = keep();
        serve(&host);
        let daemon = host.start();
        assert_all(Some("nodelb"), Some("other"), Some("other"), "with both");
        assert_kept(&mut kept, "other", "with both");
        // The refusal of the first one stands.
        assert_eq!(errno(REFUSED, Transport::Tcp), "ECONNREFUSED", "the errno of the second one");
        assert_eq!(errno(HALF_REFUSED, Transport::Tcp), "EHOSTUNREACH");
        daemon.kill();
        assert_all(Some("nodelb"), Some("other"), Some("other"), "with nodelb killed");
        let daemon = host.start();
        assert_all(Some("nodelb"), Some("other"), Some("other"), "with nodelb started again");
        drop(programs);
        assert_all(Some("nodelb"), None, Some("nodelb"), "without the other programs");
        assert_kept(&mut kept, "other", "without the other programs");
        daemon.stop();
        host.cleanup();
        assert_all(None, None, None, "without both");
    });
}

#[test]
fn nodelb_translates_what_both_know_if_it_was_first() {
    sandbox::run("other_programs::nodelb_translates_what_both_know_if_it_was_first", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        serve(&host);
        let daemon = host.start();
        let mut kept = keep();
        let programs = Programs::attach(&host, sandbox);
        assert_all(Some("nodelb"), Some("other"), Some("nodelb"), "with both");
        assert_kept(&mut kept, "nodelb", "with both");
        assert_eq!(errno(REFUSED, Transport::Tcp), "EHOSTUNREACH", "the errno of the second one");
        assert_eq!(connect(HALF_REFUSED, Transport::TcpLines, 5).answered.get("nodelb"), Some(&5));
        daemon.stop();
        assert_all(Some("nodelb"), Some("other"), Some("nodelb"), "with nodelb stopped");
        let daemon = host.start();
        assert_all(Some("nodelb"), Some("other"), Some("nodelb"), "with nodelb started again");
        assert_kept(&mut kept, "nodelb", "with nodelb started again");
        daemon.stop();
        host.cleanup();
        assert_all(None, Some("other"), Some("other"), "after cleanup");
        assert_kept(&mut kept, "nodelb", "after cleanup");
        // nodelb is the second one from now on.
        let _daemon = host.start();
        assert_all(Some("nodelb"), Some("other"), Some("other"), "with nodelb as the second one");
        drop(programs);
        assert_all(Some("nodelb"), None, Some("nodelb"), "without the other programs");
    });
}

fn nodelb(host: &Host, words: &[&str]) -> Output {
    let config = host.path("nodelb.toml");
    let mut command = Command::new(NODELB);
    command.args(words);
    if words[0] == "diagnose" {
        command.arg("--config").arg(config);
    }
    command.output().unwrap()
}

/// The output and the exit code of a command.
fn shown(host: &Host, words: &[&str]) -> (String, Option<i32>) {
    let output = nodelb(host, words);
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

/// The causes of the problems about shared hooks.
fn shared() -> Vec<String> {
    let status = get("/status").unwrap();
    let problems = status["problems"].as_array().unwrap().iter();
    let of_hooks = problems.filter(|row| row["reason"] == "HooksShared");
    of_hooks
        .map(|row| {
            assert_eq!(row["severity"], "notice", "{row:#}");
            row["cause"].as_str().unwrap().to_owned()
        })
        .collect()
}

#[test]
fn status_trace_and_diagnose_name_the_programs_of_others() {
    sandbox::run("other_programs::status_trace_and_diagnose_name_the_programs_of_others", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        serve(&host);
        let daemon = host.start();
        assert_eq!(shared(), [""; 0]);
        let programs_of_others = Programs::attach(&host, sandbox);
        let each = |order: &str| {
            let hooks = ["connect4", "connect6", "sendmsg4", "sendmsg6"];
            let programs = hooks.map(|hook| format!("other_{hook} ({}) at {hook}", programs_of_others.id(hook)));
            format!("programs of other software run {order} nodelb's: {}; ", programs.join(", "))
        };
        // Other software cannot detach what a link attaches, as Cilium tries with what it takes for its own.
        let bind = Link::open(host.pins.join(format!("v{LAYOUT}/links/bind4"))).unwrap();
        let (cgroup, bind) = (sandbox.cgroup.to_str().unwrap(), bind.info().unwrap().prog_id.to_string());
        let detach = ["cgroup", "detach", cgroup, "cgroup_inet4_bind", "id", &bind];
        let refused = sandbox::program("bpftool").args(detach).output().unwrap();
        assert!(!refused.status.success(), "{refused:?}");
        let later = shared();
        assert!(later.len() == 1 && later[0].starts_with(&each("after")), "{later:?}");
        for name in ["refused.toml", "half.toml"] {
            host.withdraw(name);
        }
        let is_gone = |address: &str| ["TCP", "UDP"].iter().all(|it| frontend(&format!("{address}/{it}")).is_none());
        eventually("the services are gone", || is_gone(REFUSED) && is_gone(HALF_REFUSED));
        assert!(!shown(&host, &["trace", BOTH[0]]).0.contains("other_"), "they run after nodelb");
        assert_eq!(shown(&host, &["diff", "--probe"]).1, Some(0));
        daemon.stop();
        host.cleanup();

        // nodelb is the second one.
        let daemon = host.start();
        let first = shared();
        assert!(first.len() == 1 && first[0].starts_with(&each("before")), "{first:?}");
        let (status, code) = shown(&host, &["status"]);
        assert!(code == Some(0) && status.contains("NOTICE") && status.contains(&first[0]), "{status}");
        let (trace, code) = shown(&host, &["trace", BOTH[0]]);
        assert!(code == Some(0) && trace.contains("before nodelb, other_connect4 ("), "{trace}");
        let (found, code) = shown(&host, &["diagnose", "shop/both"]);
        let evidence = "a connection to 198.51.100.30:80/TCP reached 192.0.2.12:8080/TCP, which is no backend";
        assert!(code == Some(1) && found.contains(evidence) && found.contains("other_connect4 ("), "{found}");
        let (found, code) = shown(&host, &["diagnose", "shop/own"]);
        assert!(code == Some(0) && found.contains("other_connect4 ("), "{found}");
        let (differences, code) = shown(&host, &["diff", "--probe"]);
        assert!(code == Some(1) && differences.contains("192.0.2.12:8080"), "{differences}");
        drop(programs_of_others);
        assert_eq!(shared(), [""; 0]);
        assert_eq!(shown(&host, &["diff", "--probe"]).1, Some(0));
        daemon.stop();
        assert!(!host.log().contains("other_connect4"), "{}", host.log());
    });
}

/// systemd attaches programs of other kinds to cgroups, without links.
#[test]
fn programs_at_hooks_of_other_kinds_are_no_notice_and_those_without_links_are() {
    let test = "other_programs::programs_at_hooks_of_other_kinds_are_no_notice_and_those_without_links_are";
    sandbox::run(test, |sandbox| {
        let host = Host::new(sandbox);
        serve(&host);
        let _daemon = host.start();
        drop(Programs::attach(&host, sandbox));
        let (object, pins) = (host.path("translator.o"), sandbox.bpffs.join("other"));
        fs::create_dir(&pins).unwrap();
        let [object, pins, cgroup] = [&object, &pins, &sandbox.cgroup].map(|path| path.to_str().unwrap());
        command("bpftool", &["prog", "loadall", object, pins]);
        let attach = |kind: &str, program: &str| {
            command("bpftool", &["cgroup", "attach", cgroup, kind, "pinned", &format!("{pins}/{program}"), "multi"]);
        };
        attach("cgroup_inet_egress", "other_packets");
        attach("cgroup_inet4_getpeername", "other_getpeername4");
        assert_eq!(shared(), [""; 0]);
        attach("cgroup_udp6_sendmsg", "other_sendmsg6");
        let found = shared();
        assert!(found.len() == 1 && found[0].contains(" after nodelb's: other_sendmsg6 ("), "{found:?}");
    });
}

/// The kernel runs programs of a cgroup before those of the cgroups above.
#[test]
fn programs_of_a_cgroup_above_run_after_those_of_nodelb() {
    sandbox::run("other_programs::programs_of_a_cgroup_above_run_after_those_of_nodelb", |sandbox| {
        let host = Host::without_the_test(sandbox);
        let _programs = Programs::attach(&host, sandbox);
        let _daemon = host.start();
        let found = shared();
        assert!(found.len() == 1 && found[0].contains(" after nodelb's: other_connect4 ("), "{found:?}");
    });
}
