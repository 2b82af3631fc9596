//! A fleet of plain hosts that share one catalogue (docs/fleet.md): processes of every host connect to a service while
//! its backends are replaced one by one, a backend dies, and the API servers die.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nodelb_prober::Backend;

use crate::fleet_hosts::{Fleet, HOSTS, Member, WEB, block};
use crate::host::{eventually, say};
use crate::outside_changes::processes_of_the_node;
use crate::sandbox;

/// Connects of all hosts together, unless `FLEET_CONNECTS` is set.
const CONNECTS: usize = 1_000;
/// How long after the death of a backend connects may fail: the interval of the page with its jitter, and what one
/// check takes on a busy machine.
const INTERVAL: Duration = Duration::from_millis(1_500);

/// Connects about every 5 ms until the file `$4` exists and there were `$5` connects. Prints the time of each and the
/// name of the backend, or `-`.
const CLIENT: &str = r#"
echo $$ >"$1" || exit 1
exec 9<> <(:)
n=0
while [ ! -e "$4" ] || [ "$n" -lt "$5" ]; do
    name=
    { exec 3<>"/dev/tcp/$2/$3" && read -r -t 5 name <&3; } 2>/dev/null
    exec 3>&-
    echo "$EPOCHREALTIME ${name:--}"
    n=$((n + 1))
    read -r -t 0.005 -u 9
done"#;

/// A process of a host that connects all the time.
struct Client {
    child: Child,
    output: PathBuf,
}

impl Client {
    fn start(member: &Member, stop: &str, at_least: usize) -> Self {
        let output = member.host.path("client");
        let (address, port) = WEB.split_once(':').unwrap();
        let processes = processes_of_the_node(member.daemon.as_ref().unwrap());
        let at_least = at_least.to_string();
        let arguments = ["-c", CLIENT, "client", &processes, address, port, stop, &at_least];
        let mut command = Command::new("bash");
        command.args(arguments).stdin(Stdio::null()).stdout(File::create(&output).unwrap());
        Self { child: member.place.run(|| command.spawn()).unwrap(), output }
    }

    /// The time of each connect and the backend that answered, if one did.
    fn connects(&self) -> Vec<(Duration, Option<String>)> {
        let text = std::fs::read_to_string(&self.output).unwrap();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let connects = lines.map(|(at, name)| {
            let at = Duration::from_secs_f64(at.parse().unwrap());
            (at, (name != "-").then(|| name.to_owned()))
        });
        connects.collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The slice of the page without these hosts.
fn slice_without(gone: &[&str]) -> String {
    let slice = block("apiVersion: discovery.k8s.io/v1");
    let lines = slice.lines().filter(|line| !gone.iter().any(|host| line.contains(host)));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Replaces the backend of each host, one after the other, as the page describes.
fn roll(fleet: &Fleet, backends: &mut [Option<Backend>], version: &str) {
    for (number, (_, address)) in HOSTS.iter().enumerate() {
        fleet.cluster.apply(&slice_without(&[address])).unwrap();
        let others: Vec<&str> = HOSTS.iter().map(|(_, other)| *other).filter(|other| other != address).collect();
        fleet.wait_for(WEB, &others);
        // A client that has just connected reads its answer.
        thread::sleep(Duration::from_millis(200));
        backends[number] = None;
        backends[number] = Some(fleet.members[number].backend(version));
        fleet.cluster.apply(&slice_without(&[])).unwrap();
        fleet.wait_for(WEB, &HOSTS.map(|(_, address)| address));
    }
}

#[test]
fn a_fleet_without_kubelets_serves_through_changes_and_failures() {
    sandbox::run("fleet::a_fleet_without_kubelets_serves_through_changes_and_failures", |sandbox| {
        let wanted = std::env::var("FLEET_CONNECTS").map_or(CONNECTS, |text| text.parse().unwrap());
        let mut fleet = Fleet::new(sandbox, "");
        fleet.cluster.apply(&block("apiVersion: v1")).unwrap();
        fleet.cluster.apply(&slice_without(&[])).unwrap();
        let mut backends: Vec<Option<Backend>> = fleet.members.iter().map(|it| Some(it.backend("v1"))).collect();
        fleet.members.iter_mut().for_each(Member::start);
        let all = HOSTS.map(|(_, address)| address);
        fleet.wait_for(WEB, &all);
        for member in &fleet.members {
            let problems = member.status()["problems"].clone();
            assert_eq!(problems, serde_json::json!([]), "a host without a Node object has no problem");
        }

        let stop = fleet.members[0].host.path("stop").to_string_lossy().into_owned();
        let each = wanted.div_ceil(fleet.members.len());
        let clients: Vec<Client> = fleet.members.iter().map(|member| Client::start(member, &stop, each)).collect();
        let done = || clients.iter().map(|client| client.connects().len()).sum::<usize>();
        let mut rounds = 0;
        while rounds == 0 || done() < wanted {
            rounds += 1;
            roll(&fleet, &mut backends, &format!("v{}", rounds + 1));
        }
        let rolled = now();

        // The API servers die: first the one in use, then the other one. The hosts go on with what they know.
        drop(fleet.servers.remove(0));
        fleet.cluster.apply(&slice_without(&[all[0]])).unwrap();
        fleet.wait_for(WEB, &all[1..]);
        fleet.cluster.apply(&slice_without(&[])).unwrap();
        fleet.wait_for(WEB, &all);
        fleet.servers.clear();
        // One of them has nothing but its state directory.
        fleet.members[2].restart();
        fleet.wait_for(WEB, &all);

        // A backend dies, which nothing but the health checks can find out.
        let died = now();
        backends[1] = None;
        fleet.wait_for(WEB, &[all[0], all[2]]);
        let is_late = died + INTERVAL;
        thread::sleep(is_late.saturating_sub(now()) + Duration::from_millis(500));
        std::fs::write(&stop, "").unwrap();
        eventually("the end of the clients", || clients.iter().all(|client| client.connects().len() >= each));
        thread::sleep(Duration::from_millis(100));

        let connects: Vec<_> = clients.iter().flat_map(Client::connects).collect();
        let failed: Vec<Duration> = connects.iter().filter(|(_, name)| name.is_none()).map(|(at, _)| *at).collect();
        let outside: Vec<&Duration> = failed.iter().filter(|at| **at < died || **at > is_late).collect();
        say(&format!(
            "{} connects of 3 hosts, {rounds} rolling changes until {:?} before the death of a backend; failed: {}, the \
             last {:?} after it",
            connects.len(),
            died.saturating_sub(rolled),
            failed.len(),
            failed.iter().max().map(|at| at.saturating_sub(died)),
        ));
        assert!(connects.len() >= wanted && connects.iter().any(|(at, _)| *at > is_late));
        assert!(outside.is_empty(), "failed outside of {died:?}..{is_late:?}: {outside:?}");
        let last = format!("v{}", rounds + 1);
        let answered = |version: &str| connects.iter().any(|(_, name)| name.as_deref() == Some(version));
        assert!(answered("v1") && answered(&last), "every version has answered");
    });
}
