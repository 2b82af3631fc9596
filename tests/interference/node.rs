//! The node of a run: service files, state directory, configuration, daemon, DNS servers and API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nodelb_apiserver::{Cluster, Ranges, Replica, ServeOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::pair::{Found, HOLD, Pair, Pairs, Wrong, frontend_of_a, frontend_of_b, frontend_of_d};
use super::steps::{Form, Step, Stored};
use super::{Place, TIMEOUT, servers};

/// The pause between two looks at the maps.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// A wait that is long enough for another query of each name.
const SHORT_WAIT: Duration = Duration::from_millis(1_300);
/// The longest time that an answer of the daemon and of the DNS servers takes unless the machine stands still.
const STALL: Duration = Duration::from_millis(500);
/// A health check that fails, because nothing listens at the backends.
const CHECK: &str =
    "[service.health-check]\ntype = \"tcp\"\ninterval = \"200ms\"\ntimeout = \"100ms\"\nrise = 1\nfall = 1\n";

pub(super) struct Node<'a> {
    place: &'a dyn Place,
    directory: PathBuf,
    admin: SocketAddr,
    pairs: Arc<Mutex<Pairs>>,
    servers: [SocketAddr; 2],
    cluster: Cluster,
    _replica: Replica,
    daemon: Option<Child>,
    looking: Option<thread::JoinHandle<()>>,
    /// names.json at the restart before.
    older: Option<Value>,
}

impl<'a> Node<'a> {
    /// A running daemon that nothing is known about yet.
    pub(super) fn new(place: &'a dyn Place, (run, attempt): (u32, u32), forms: &[Form]) -> Self {
        let directory = place.directory(&format!("{run}-{attempt}"));
        fs::create_dir_all(directory.join("services.d")).expect("a directory");
        let pairs = Arc::new(Mutex::new(Pairs::new(forms)));
        let servers = [true, false].map(|is_first| servers::start(Arc::clone(&pairs), is_first));
        let ranges = ["198.51.100.0/24", "203.0.113.0/24"].map(|range| range.parse::<IpNet>().expect("a range"));
        let cluster = Cluster::with(Ranges { addresses: ranges.to_vec(), ..Ranges::default() }).expect("a cluster");
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let apiserver = listener.local_addr().expect("bound");
        for number in 0..forms.len() {
            let (a, c) = (format!("a{number}"), format!("c{number}"));
            let objects = [
                service(&a, &format!("203.0.113.{number}")),
                slice(&a, 1),
                service(&c, &format!("198.51.100.{number}")),
                slice(&c, 1),
            ];
            objects.into_iter().for_each(|object| cluster.apply_value(object).expect("a valid object"));
        }
        let replica = cluster.serve(listener, ServeOptions::default()).expect("served");
        let kubeconfig = cluster.kubeconfig(&[&format!("https://{apiserver}")]).expect("a kubeconfig");
        fs::write(directory.join("kubeconfig"), kubeconfig).expect("written");
        let admin = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("loopback");
        let (daemon, looking) = (None, None);
        let (older, _replica) = (None, replica);
        let mut node = Self { place, directory, admin, pairs, servers, cluster, _replica, daemon, looking, older };
        node.configure(apiserver);
        place.reboot(&node.directory.join("nodelb.toml"));
        (0..forms.len()).for_each(|number| node.write_files(number, true));
        node.look();
        node.start();
        node
    }

    fn configure(&self, apiserver: SocketAddr) {
        let at = |name: &str| self.directory.join(name);
        let servers = self.servers.map(|server| server.to_string());
        let text = format!(
            "{}[files]\ndirectory = {:?}\n[state]\ndirectory = {:?}\n[admin]\nlisten = [\"{}\"]\nsocket = {:?}\n\
             [dns]\nservers = {servers:?}\nmax-ttl = \"1s\"\nhold = \"{}s\"\n[kubernetes]\nkubeconfig = {:?}\nhealthz-addresses = []\n\
             [[kubernetes.apiserver]]\naddress = \"{apiserver}\"\ntls-server-name = \"kubernetes\"\n",
            self.place.sections(),
            at("services.d"),
            at("state"),
            self.admin,
            at("nodelb.sock"),
            HOLD.as_secs(),
            at("kubeconfig"),
        );
        fs::write(at("nodelb.toml"), text).expect("written");
    }

    /// Whether the machine stood still so long that a server seemed to be silent.
    pub(super) fn has_stalled(&self) -> bool {
        self.pairs().has_stalled
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn pairs(&self) -> MutexGuard<'_, Pairs> {
        self.pairs.lock().expect("not poisoned")
    }

    fn replace(&self, file: &str, text: &str) {
        let (new, file) = (self.directory.join("new"), self.directory.join("services.d").join(file));
        fs::write(&new, text).expect("written");
        fs::rename(new, file).expect("renamed");
    }

    fn write_a(&self, number: usize) {
        let from = match self.pairs().all[number].form {
            Form::Srv(_) => format!("backends-from = \"srv:_http._tcp.a{number}.example\""),
            Form::Address => format!("backends = [\"a{number}.example:8080\"]"),
        };
        let check = if self.pairs().all[number].is_checked { CHECK } else { "" };
        let text = entry(&format!("a{number}"), &frontend_of_a(number), &from) + check;
        self.replace(&format!("a{number}.toml"), &text);
    }

    fn write_files(&self, number: usize, has_d: bool) {
        self.write_a(number);
        let backends = format!("backends = [\"b{number}.example:8080\"]");
        self.replace(&format!("b{number}.toml"), &entry(&format!("b{number}"), &frontend_of_b(number), &backends));
        if has_d {
            let d = entry(&format!("d{number}"), &frontend_of_d(number), "backends = [\"192.0.2.99:80\"]");
            self.replace(&format!("d{number}.toml"), &d);
        }
    }

    fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut command = self.place.command();
        command.arg("run").arg("--config").arg(self.directory.join("nodelb.toml"));
        command.env_remove("JOURNAL_STREAM").env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.daemon = Some(command.spawn().expect("the binary starts"));
    }

    /// Looks at the maps from now on.
    fn look(&mut self) {
        let (pairs, admin, servers) = (Arc::clone(&self.pairs), self.admin, self.servers);
        self.looking = Some(thread::spawn(move || {
            while !pairs.lock().expect("not poisoned").is_over {
                let (start, run) = (Instant::now(), pairs.lock().expect("not poisoned").starts);
                let found = look(admin);
                let do_respond = servers.iter().all(|server| servers::catch_up(*server, STALL));
                let mut pairs = pairs.lock().expect("not poisoned");
                pairs.has_stalled |= !do_respond || start.elapsed() > STALL;
                if let Some(found) = found.filter(|_| pairs.starts == run) {
                    pairs.look(&found);
                }
                drop(pairs);
                thread::sleep(LOOK_EVERY);
            }
        }));
    }

    /// A step of one sequence.
    pub(super) fn apply(&self, number: usize, step: Step) {
        match step {
            Step::Say(says) => self.pairs().all[number].says = says,
            Step::Break => {
                self.pairs().all[number].break_file();
                self.replace(&format!("a{number}.toml"), "[[service]]\nname = \"shop/a\n");
            }
            Step::Repair => {
                self.write_a(number);
                self.pairs().all[number].repair_file();
            }
            Step::Endpoints(Some(count)) => {
                self.cluster.apply_value(slice(&format!("a{number}"), count)).expect("a valid object");
            }
            Step::Endpoints(None) => drop(self.cluster.delete("endpointslices", "k", &format!("a{number}"))),
            Step::Check(has_failed) if self.place.may_check() => {
                self.pairs().all[number].set_check(has_failed);
                let is_unreadable = self.pairs().all[number].is_unreadable();
                if !is_unreadable {
                    self.write_a(number);
                }
            }
            Step::Check(_) => {}
            Step::Wait(_) | Step::Restart { .. } => unreachable!("a step of the whole node"),
        }
    }

    pub(super) fn check(&mut self) -> Result<(), Wrong> {
        let ended = self.daemon.as_mut().and_then(|daemon| daemon.try_wait().expect("a child"));
        match self.pairs().wrong.clone() {
            Some(wrong) => Err(wrong),
            None => ended.map_or(Ok(()), |status| Err(Wrong { sequence: 0, why: format!("nodelb ended: {status}") })),
        }
    }

    /// Waits until each name was queried again, or until a hold has ended, and then until everything has followed.
    pub(super) fn wait(&mut self, is_long: bool) -> Result<(), Wrong> {
        let end = Instant::now() + if is_long { HOLD + SHORT_WAIT } else { SHORT_WAIT };
        while Instant::now() < end {
            thread::sleep(LOOK_EVERY);
            self.check()?;
        }
        self.settle()
    }

    /// Waits until everything has followed that must.
    pub(super) fn settle(&mut self) -> Result<(), Wrong> {
        let (end, first) = (Instant::now() + TIMEOUT, self.pairs().looks);
        loop {
            self.check()?;
            let wrong = self.wrong_now(first + 2);
            let Some(wrong) = wrong else { return Ok(()) };
            if Instant::now() > end {
                return Err(wrong);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn wrong_now(&self, looks: u64) -> Option<Wrong> {
        let of_all = |why: String| Some(Wrong { sequence: 0, why });
        let pairs = self.pairs();
        if pairs.looks < looks {
            return of_all("the daemon does not respond".into());
        }
        let is_file_missing = pairs.all.iter().any(Pair::is_unreadable);
        let has_restarted = !self.directory.join("services.d/d0.toml").exists();
        if has_restarted && !is_file_missing && !pairs.has_removed {
            return of_all("a removed service is still there".into());
        }
        pairs.unsettled()
    }

    pub(super) fn restart(&mut self, stored: Stored, is_rebooted: bool, is_killed: bool) -> Result<(), Wrong> {
        self.check()?;
        let mut daemon = self.daemon.take().expect("a daemon");
        let pid = Pid::from_child(&daemon);
        kill_process(pid, if is_killed { Signal::KILL } else { Signal::TERM }).expect("a child");
        daemon.wait().expect("a child");
        assert!(self.servers.into_iter().all(|server| servers::catch_up(server, TIMEOUT)), "the DNS servers respond");
        let names = self.directory.join("state/names.json");
        let file = fs::read(&names).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let mut file: Value = file.unwrap_or_else(|| json!({"version": 1, "answers": [], "used": []}));
        let in_file = in_use(&file);
        let older = self.older.replace(file.clone());
        // A daemon that ends at once may not have created the directory.
        drop(fs::create_dir_all(self.directory.join("state")));
        match stored {
            Stored::Kept => {}
            Stored::Lost if is_killed => fs::write(&names, "{\"version\": 1, \"answ").expect("written"),
            Stored::Lost => drop(fs::remove_dir_all(self.directory.join("state"))),
            Stored::OfEarlierVersion => file = of_earlier_version(&file),
            Stored::Outdated => file = older.unwrap_or(file),
            Stored::Damaged => {
                for list in ["answers", "used"] {
                    let is_of_another = |entry: &Value| number_of(entry).is_none();
                    file[list].as_array_mut().into_iter().for_each(|entries| entries.retain(is_of_another));
                }
            }
        }
        if matches!(stored, Stored::OfEarlierVersion | Stored::Damaged | Stored::Outdated) {
            fs::write(&names, file.to_string()).expect("written");
        }
        let gone = if stored == Stored::Lost { BTreeMap::new() } else { gone_since(&file) };
        if is_rebooted {
            self.place.reboot(&self.directory.join("nodelb.toml"));
        }
        let count = self.pairs().all.len();
        (0..count).for_each(|it| {
            drop(fs::remove_file(self.directory.join(format!("services.d/d{it}.toml"))));
        });
        let mut pairs = self.pairs();
        let keeps_maps = self.place.keeps_maps() && !is_rebooted;
        pairs.end((&in_file, &gone), (stored, is_killed), keeps_maps);
        pairs.begin(keeps_maps);
        drop(pairs);
        self.check_ended()?;
        self.start();
        Ok(())
    }

    fn check_ended(&self) -> Result<(), Wrong> {
        self.pairs().wrong.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if let Ok(mut pairs) = self.pairs.lock() {
            pairs.is_over = true;
        }
        if let Some(mut daemon) = self.daemon.take() {
            drop(daemon.kill());
            drop(daemon.wait());
        }
        if let Some(looking) = self.looking.take() {
            drop(looking.join());
        }
    }
}

fn entry(name: &str, frontend: &str, backends: &str) -> String {
    format!("[[service]]\nname = \"shop/{name}\"\nfrontends = [\"{frontend}\"]\n{backends}\n")
}

fn service(name: &str, address: &str) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "k", "name": name},
        "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80}]}})
}

/// The slice of a service, with this number of endpoints.
fn slice(service: &str, count: u8) -> Value {
    let endpoints: Vec<Value> = (0..count).map(|it| json!({"addresses": [format!("192.0.2.{}", 19 + it)]})).collect();
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "k", "name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}]})
}

/// The sequence of an entry of names.json about its service A.
fn number_of(entry: &Value) -> Option<usize> {
    let text = entry.to_string();
    let label = text.split(".example").next()?.rsplit(['.', '"', ' ', '/', ':']).next()?;
    label.strip_prefix('a')?.parse().ok()
}

/// What an earlier version would have written: the answers only, without holds.
fn of_earlier_version(file: &Value) -> Value {
    let mut answers = file["answers"].clone();
    for answer in answers.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        answer.retain(|key, _| !["problem", "gone"].contains(&key.as_str()));
    }
    json!({"version": file["version"], "answers": answers})
}

/// The backend of each sequence in names.json.
fn in_use(file: &Value) -> BTreeMap<usize, String> {
    let entry = |entry: &Value| {
        let backend = &entry["priorities"][0][0];
        let port = backend["srv"][0].as_u64().unwrap_or(8_080);
        Some((number_of(&entry["question"])?, format!("{}:{port}", backend["addr"].as_str()?)))
    };
    file["used"].as_array().into_iter().flatten().filter_map(entry).collect()
}

/// Since when the name of each sequence does not exist, in names.json.
fn gone_since(file: &Value) -> BTreeMap<usize, u64> {
    let is_own = |entry: &&Value| entry["question"]["name"].as_str().is_some_and(|name| !name.starts_with("host"));
    let since = |entry: &Value| Some((number_of(&entry["question"])?, entry["gone"][0].as_u64()?));
    file["answers"].as_array().into_iter().flatten().filter(is_own).filter_map(since).collect()
}

/// What the daemon shows; `None` while it does not respond.
fn look(admin: SocketAddr) -> Option<Found> {
    let (maps, rows) = (get(admin, "/maps")?, get(admin, "/frontends")?);
    let ok = rows["frontends"].as_array()?.iter().filter(|row| row["status"] == "OK");
    let ok = ok.filter_map(|row| Some(row["address"].as_str()?.to_owned())).collect();
    let mut by_id: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for row in maps["slots"].as_array()?.iter().filter(|row| row["view"] == "cluster") {
        by_id.entry(row["id"].as_u64()?).or_default().insert(row["backend"].as_str()?.to_owned());
    }
    let frontend = |row: &Value| {
        let backends = by_id.get(&row["id"].as_u64()?).cloned().unwrap_or_default();
        Some((row["address"].as_str()?.to_owned(), backends))
    };
    Some(Found { maps: maps["frontends"].as_array()?.iter().filter_map(frontend).collect(), ok })
}

/// A table of the admin API; `None` while it does not respond.
fn get(admin: SocketAddr, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(admin).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| serde_json::from_str(body).ok())?
}
