//! The answers to reading commands without the daemon: from the pinned maps, and from the files in the state directory. The rows are those of the admin API, with what is known.

use nodelb_report::time::{Clocks, Time};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use axum::http::Uri;
use nix::unistd::geteuid;
use nodelb_cli::exit::{Code, Failure};
use nodelb_cli::without_daemon::{Pins, StoredState};
use nodelb_core::change::Change;
use nodelb_core::history::{History, Record};
use nodelb_core::model::moment::Moment;
use nodelb_datapath::{PinnedContent, is_open_for_writing};
use nodelb_host::clock::unix_millis;
use nodelb_kube::source::state_file;
use nodelb_report::explain::explanation::Client;
use nodelb_report::explain::history::select;
use nodelb_report::filter::Filter;
use nodelb_report::problems::TableUsage;
use nodelb_report::rows::from_maps::{MapContent, Names};
use nodelb_report::rows::{Backends, Frontends, HistoryAnswer, HistoryRow, Maps, TraceAnswer};
use nodelb_sources::{drains, files};
use serde::Serialize;
use serde_json::json;

use super::query::{Query, TraceFrom};
use super::routes::ROUTES;
use super::{maps, trace};
use crate::check::unserved::own_addresses;
use crate::config::{Config, DEFAULT_PATH};
use crate::recorder;

/// Returns what a daemon with the default configuration file has stored. The maps and the files are read when a request
/// needs them, and at most once.
pub fn open() -> StoredState {
    let (config, notice) = match Config::load(None) {
        Ok(config) => (config, None),
        Err(_) => (
            Config::default(),
            Some(format!(
                "{DEFAULT_PATH} is not valid, so that the default directories are read; `nodelb check-config`"
            )),
        ),
    };
    let (pins, history) = (config.datapath.pin_directory.clone(), recorder::file_path(&config.state.directory));
    let reader = Rc::new(Reader { config, ..Reader::default() });
    let (of_pins, of_notice) = (Rc::clone(&reader), Rc::clone(&reader));
    let find_pins = Box::new(move || of_pins.find_pins());
    let notice = Box::new(move || notice.clone().or_else(|| of_notice.silence()));
    StoredState { answer: Box::new(move |target| reader.answer(target)), pins, find_pins, history, notice }
}

struct ReadMaps {
    content: MapContent,
    usage: Vec<TableUsage>,
}

/// How long a command waits for a directory.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Whether the file system of the directory answers. Another process asks: one that waits for a disk cannot end before the
/// disk answers.
fn answers(directory: &Path) -> bool {
    let mut ask = Command::new("ls");
    ask.arg("-lA").arg(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut asked) = ask.spawn() else { return true };
    let begun = Instant::now();
    while begun.elapsed() < ANSWER_TIME {
        if asked.try_wait().is_ok_and(|ended| ended.is_some()) {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

#[derive(Default)]
struct Reader {
    config: Config,
    /// Whether the state directory answers.
    answers: OnceCell<bool>,
    /// The recorded changes, or why they cannot be read.
    history: OnceCell<Result<History, String>>,
    /// The maps, or why they cannot be read.
    maps: OnceCell<Result<ReadMaps, NoMaps>>,
}

#[derive(Debug, thiserror::Error)]
enum NoMaps {
    #[error("no maps of nodelb are pinned in {}", .0.display())]
    Unpinned(PathBuf),
    #[error("{0}")]
    Unreadable(String),
}

fn unavailable(problem: &impl ToString) -> Failure {
    Failure::message(Code::Unavailable, problem.to_string())
}

impl Reader {
    /// The JSON that the daemon would answer to the request.
    fn answer(&self, target: &str) -> Result<Vec<u8>, Failure> {
        let uri: Uri = target.parse().map_err(|error| Failure::new(Code::Internal, error))?;
        let route = ROUTES.iter().find(|route| route.path == uri.path());
        let parameters = route.map(super::route::Route::takes).unwrap_or_default();
        let query =
            Query::parse(&uri, &parameters).map_err(|problem| Failure::message(Code::Usage, problem.message))?;
        let filter = &query.filter;
        match uri.path() {
            "/maps" => json(&self.maps(filter)?),
            "/frontends" => json(&Frontends { frontends: self.content()?.frontends(filter) }),
            "/backends" => json(&Backends { backends: self.content()?.backends(filter) }),
            "/services" => json(&self.names(filter)?),
            "/history" => json(&self.history(filter)?),
            "/trace" => json(&self.trace(&query)?),
            path => Err(unavailable(&format!("{path} needs the daemon"))),
        }
    }

    fn content(&self) -> Result<&MapContent, Failure> {
        self.read_maps().map(|read| &read.content)
    }

    fn read_maps(&self) -> Result<&ReadMaps, Failure> {
        self.maps.get_or_init(|| self.find_maps()).as_ref().map_err(unavailable)
    }

    fn find_pins(&self) -> Pins {
        if self.maps.get().is_some_and(Result::is_ok) {
            return Pins::Present;
        }
        match self.read_pinned() {
            Ok(_) => Pins::Present,
            Err(NoMaps::Unpinned(directory)) => Pins::Absent(directory),
            Err(NoMaps::Unreadable(why)) => Pins::Unknown(why),
        }
    }

    fn read_pinned(&self) -> Result<PinnedContent, NoMaps> {
        let directory = &self.config.datapath.pin_directory;
        match nodelb_datapath::read_pinned(directory) {
            Ok(Some(pinned)) => Ok(pinned),
            Ok(None) => Err(NoMaps::Unpinned(directory.clone())),
            Err(error) => {
                let why = format!("the maps of the kernel cannot be read: {error}{}", as_root());
                Err(NoMaps::Unreadable(why))
            }
        }
    }

    /// Whether the state directory answers.
    fn has_state(&self) -> bool {
        *self.answers.get_or_init(|| answers(&self.config.state.directory))
    }

    /// What is unknown because the state directory does not answer.
    fn silence(&self) -> Option<String> {
        let is_silent = self.answers.get() == Some(&false);
        is_silent.then(|| format!("names unknown: {} does not answer", self.config.state.directory.display()))
    }

    fn find_maps(&self) -> Result<ReadMaps, NoMaps> {
        let pinned = self.read_pinned()?;
        let PinnedContent { content, clients, limits } = pinned;
        let usage = maps::usage_of(&content.state, limits, (content.state.slot_count(), Some(clients.len())));
        let content = MapContent {
            state: content.state,
            names: self.known_names(),
            nodeport_range: self.config.datapath.nodeport_range.clone(),
            has_outside: limits.outside > 0,
        };
        Ok(ReadMaps { content, usage })
    }

    /// The names and backends in the services directory, in the stored state of Kubernetes and in the recorded changes, and
    /// the drains. A file that cannot be read only leaves them unknown.
    fn known_names(&self) -> Names {
        let mut names = Names::default();
        if answers(&self.config.files.directory) {
            let (services, slices) =
                files::described(&self.config.files.directory, is_open_for_writing).unwrap_or_default();
            services.iter().for_each(|service| names.add_service(service));
            slices.iter().for_each(|slice| names.add_slice(slice));
        }
        if !self.has_state() {
            return names;
        }
        names.drains = drains::stored(&self.config.state.directory).unwrap_or_default();
        let stored = state_file::read(&state_file::path(&self.config.state.directory), None, "");
        for change in stored.map(|stored| stored.changes).unwrap_or_default() {
            match change {
                Change::UpsertService(service) => names.add_service(&service),
                Change::UpsertSlice(slice) => names.add_slice(&slice),
                _ => {}
            }
        }
        if let Ok(history) = self.stored_history() {
            history.after(0).for_each(|record| names.add_record(record));
        }
        names
    }

    fn stored_history(&self) -> Result<&History, Failure> {
        let directory = &self.config.state.directory;
        let read = || {
            let path = recorder::file_path(directory);
            if !self.has_state() {
                return Err(format!("{} cannot be read: its file system does not answer", path.display()));
            }
            match recorder::stored(directory) {
                Ok(history) if history.is_empty() => Err(format!("no changes are stored in {}", path.display())),
                Ok(history) => Ok(history),
                Err(error) => Err(format!("{} cannot be read: {error}{}", path.display(), as_root())),
            }
        };
        self.history.get_or_init(read).as_ref().map_err(unavailable)
    }

    fn maps(&self, filter: &Filter) -> Result<Maps, Failure> {
        let ReadMaps { content, usage } = self.read_maps()?;
        Ok(maps::maps(&content.state, &|id| content.name_of(id), usage, filter))
    }

    /// The names alone: commands use them to complete and check names on the command line.
    fn names(&self, filter: &Filter) -> Result<serde_json::Value, Failure> {
        let names = self.content()?.services();
        let meant = names.into_iter().filter(|name| filter.service.as_ref().is_none_or(|wanted| wanted == *name));
        Ok(json!({ "services": meant.map(|name| json!({ "service": name.to_string() })).collect::<Vec<_>>() }))
    }

    fn history(&self, filter: &Filter) -> Result<HistoryAnswer, Failure> {
        let history = self.stored_history()?;
        // Without the maps, the records still name the addresses that changed.
        let behind = filter.address.and_then(|addr| Some(self.content().ok()?.services_at(addr)));
        let records = select(history, filter, &behind.unwrap_or_default());
        let row = |record: Record| HistoryRow::from(&Record { is_from_before: false, ..record });
        Ok(HistoryAnswer { history: records.iter().map(|record| row(Record::clone(record))).collect() })
    }

    fn trace(&self, query: &Query) -> Result<TraceAnswer, Failure> {
        let to = query.to.ok_or_else(|| Failure::message(Code::Usage, "the destination is missing"))?;
        let from = match query.from.unwrap_or(TraceFrom::Client(Client::Host)) {
            TraceFrom::Client(client) => client,
            TraceFrom::At(..) | TraceFrom::Namespace(_) => {
                let message = "only the daemon knows which client has this address or network namespace; without it, use \
                               --from host, pod or outside";
                return Err(Failure::message(Code::Unavailable, message));
            }
        };
        let content = self.content()?;
        let is_here = own_addresses().contains(&to.addr);
        let mut answer = trace::from_maps::trace(content, (to, is_here), from);
        let now = Clocks { moment: Moment(0), time: Time(unix_millis()) };
        if let Ok(history) = self.stored_history().as_ref()
            && content.trace(to, Client::Host).found.is_none()
        {
            let is_nodeport = content.state.node_addrs.contains(&to.addr);
            trace::add_former(&mut answer, history, (to, is_nodeport), now);
        }
        Ok(answer)
    }
}

/// The remedy if the process may not read the maps or the files.
fn as_root() -> &'static str {
    if geteuid().is_root() { "" } else { "; run the command as root, for example with sudo" }
}

fn json(answer: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut json = serde_json::to_vec(answer).map_err(|error| Failure::new(Code::Internal, error))?;
    json.push(b'\n');
    Ok(json)
}

#[cfg(test)]
#[path = "tests/without_daemon.rs"]
mod tests;
