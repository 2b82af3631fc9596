//! Two hosts of the fleet that share an address by keepalived (docs/fleet.md, contrib/keepalived): a client outside
//! connects while the host with the address dies, and while nodelb alone dies there.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use nodelb_prober::probe::connect_times;
use nodelb_prober::{Backend, Plan, Probe, Transport};

use crate::fleet_hosts::{Fleet, HOSTS, Member, block, join};
use crate::host::{eventually, say, socket};
use crate::lab::Place;
use crate::network::ip;
use crate::sandbox;

/// The address that the hosts share.
const SHARED: &str = "203.0.113.100:80";
/// How long the address may be without a host after the death of the one that had it.
const MOVED_WITHIN: Duration = Duration::from_secs(3);
/// That time if nodelb alone ends: two failed checks come first. The kernel serves the address meanwhile.
const CHECKED_WITHIN: Duration = Duration::from_secs(6);

const KEEPALIVED: &str = include_str!("../../contrib/keepalived/keepalived.conf");
const CHECK: &str = include_str!("../../contrib/keepalived/check-nodelb");

/// keepalived in the namespaces of a host. Killed with its children when dropped.
struct Keepalived(Child);

impl Keepalived {
    fn start(member: &Member) -> Self {
        let file = |name: &str| member.host.path(name);
        let [configuration, check, log] = ["keepalived.conf", "check-nodelb", "keepalived.log"].map(file);
        let nodelb = format!("{:?} status", env!("CARGO_BIN_EXE_nodelb"));
        fs::write(&check, CHECK.replace("nodelb status >", &format!("{nodelb} >"))).unwrap();
        fs::set_permissions(&check, Permissions::from_mode(0o755)).unwrap();
        let check = check.to_string_lossy();
        // The build directory may be readable for root alone.
        let text = KEEPALIVED.replace("/etc/keepalived/check-nodelb", &check).replace("daemon daemon", "root");
        assert!(text.contains(&*check) && text.contains("script_user root"), "{text}");
        fs::write(&configuration, text).unwrap();
        let log = File::create(log).unwrap();
        let mut command = sandbox::program("keepalived");
        command.args(["--dont-fork", "--vrrp", "--no-syslog", "--log-console", "--log-detail"]);
        command.arg("--use-file").arg(&configuration);
        command.arg("--pid").arg(file("keepalived.pid")).arg("--vrrp_pid").arg(file("vrrp.pid"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        Self(member.place.run(|| command.spawn()).unwrap())
    }

    fn kill(&mut self) {
        let group = Pid::from_raw(self.0.id().try_into().unwrap());
        let _ = killpg(group, Signal::SIGKILL);
        drop(self.0.wait());
    }
}

impl Drop for Keepalived {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The first two hosts of the fleet with keepalived, backends on the second and third, and the client outside.
struct Pair {
    fleet: Fleet,
    keepalived: Vec<Keepalived>,
    _backends: Vec<Backend>,
    client: Place,
}

impl Pair {
    fn start(sandbox: &sandbox::Sandbox) -> Self {
        let further = block("[datapath]").replace("[datapath]\n", "");
        let mut fleet = Fleet::new(sandbox, &further);
        let service = block("apiVersion: v1").replace("  ports:\n", "  externalIPs: [203.0.113.100]\n  ports:\n");
        fleet.cluster.apply(&service).unwrap();
        fleet.cluster.apply(&block("apiVersion: discovery.k8s.io/v1")).unwrap();
        let backends = fleet.members.iter().map(|it| it.backend("v1")).collect();
        fleet.members[..2].iter_mut().for_each(Member::start);
        fleet.wait_for(SHARED, &HOSTS.map(|(_, address)| address));
        let keepalived = fleet.members[..2].iter().map(Keepalived::start).collect();
        let client = join("client", "203.0.113.50");
        let pair = Self { fleet, keepalived, _backends: backends, client };
        eventually("one host has the address", || pair.masters().len() == 1);
        pair.wait_until_served();
        pair
    }

    /// The positions of the hosts with the address.
    fn masters(&self) -> Vec<usize> {
        let has_address = |member: &Member| {
            let list = member.place.run(|| sandbox::program("ip").args(["address", "show", "dev", "eth0"]).output());
            String::from_utf8_lossy(&list.unwrap().stdout).contains("203.0.113.100/")
        };
        (0..2).filter(|number| has_address(&self.fleet.members[*number])).collect()
    }

    fn connects(&self) -> bool {
        let plan = Plan { timeout: Duration::from_millis(200), ..Plan::new(socket(SHARED), Transport::Tcp) };
        self.client.run(|| connect_times(plan, 1)).failures() == 0
    }

    fn wait_until_served(&self) {
        eventually("the client reaches the service", || (0..20).all(|_| self.connects()));
    }

    /// Waits until the host at `to` has the address; returns when it had it, and when the client connected, as times
    /// since `since`.
    fn moved(&self, to: usize, since: Instant) -> [Duration; 2] {
        eventually(&format!("{} has the address", HOSTS[to].0), || self.masters().contains(&to));
        let moved = since.elapsed();
        eventually("the client connects again", || self.connects());
        [moved, since.elapsed()]
    }

    fn log(&self) -> String {
        let log = |member: &Member| fs::read_to_string(member.host.path("keepalived.log")).unwrap_or_default();
        self.fleet.members[..2].iter().map(log).collect::<Vec<_>>().join("\n---\n")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("keepalived said:\n{}", self.log()));
        }
    }
}

#[test]
fn the_address_moves_when_its_host_dies() {
    sandbox::run("fleet_failover::the_address_moves_when_its_host_dies", |sandbox| {
        let mut pair = Pair::start(sandbox);
        let first = pair.masters()[0];
        let died = Instant::now();
        ip(&["link", "set", HOSTS[first].0, "down"]);
        pair.fleet.members[first].daemon.take().unwrap().kill();
        pair.keepalived[first].kill();
        let [moved, connected] = pair.moved(1 - first, died);
        say(&format!("the host died: the address moved after {moved:.2?}, the client connected after {connected:.2?}"));
        assert!(connected <= MOVED_WITHIN, "{moved:?}, {connected:?}");
        // The backend of the dead host is found by the health checks.
        let left: Vec<&str> = (0..3).filter(|number| *number != first).map(|number| HOSTS[number].1).collect();
        pair.fleet.wait_for(SHARED, &left);
        let plan = Plan::new(socket(SHARED), Transport::Tcp);
        let tally = pair.client.run(|| connect_times(plan, 100));
        assert_eq!(tally.failures(), 0, "{tally}");
    });
}

/// The kernel serves the address until it moves, so no connect fails.
#[test]
fn the_address_moves_when_nodelb_dies_and_no_connect_fails() {
    sandbox::run("fleet_failover::the_address_moves_when_nodelb_dies_and_no_connect_fails", |sandbox| {
        let mut pair = Pair::start(sandbox);
        let first = pair.masters()[0];
        let plan = Plan { rate: 100, ..Plan::new(socket(SHARED), Transport::Tcp) };
        let probe = pair.client.run(|| Probe::start(plan));
        let died = Instant::now();
        pair.fleet.members[first].daemon.take().unwrap().kill();
        let [moved, _] = pair.moved(1 - first, died);
        eventually("the other host gave it up", || pair.masters() == [1 - first]);
        std::thread::sleep(Duration::from_millis(500));
        let tally = probe.finish();
        say(&format!("nodelb died: the address moved after {moved:.2?}; {tally}"));
        assert!(moved <= CHECKED_WITHIN, "{moved:?}");
        assert_eq!(tally.failures(), 0, "{tally}");

        // A host that returns does not take the address back.
        pair.fleet.members[first].start();
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(pair.masters(), [1 - first]);
    });
}
