//! `nodelb check-config`: finds all problems of the configuration, of the credentials for Kubernetes and of the
//! services directory before a start or a reload does.

pub(crate) mod unserved;

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::unistd::geteuid;
use nodelb_cli::CheckOptions;
use nodelb_cli::exit::{Code, Failure};
use nodelb_datapath::{foreign_pin_directories, is_open_for_writing};
use nodelb_host::cgroup as own_cgroup;
use nodelb_kube::apiserver::credentials::{self, Named, credstore};
use nodelb_kube::apiserver::settings::Settings;
use nodelb_kube::source::state_file;
use nodelb_sources::files;

use self::unserved::unserved;
use crate::config::{Config, DEFAULT_PATH};
use crate::devices;

/// Checks the configuration. Unless only its keys are to be checked, it also checks the credentials and the services
/// directory that the configuration names. Runs no exec plugin and makes no connection.
///
/// # Errors
/// All problems of the configuration; or, if root runs the command, every file that the unit's root may not open; or
/// the first problem of the credentials (exit code 78), or all problems of the service files (65).
pub fn check(options: &CheckOptions, out: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
    if options.keys {
        let summary = "Configuration keys and values OK. The files and addresses in them were not checked.";
        return Ok(writeln!(out, "{summary}").context("writing the summary")?);
    }
    for notice in unit_notices(&config).into_iter().chain(listen_notices(&config)).chain(snat_notices(&config)) {
        writeln!(out, "{notice}").context("writing a notice")?;
    }
    let (config_files, service_files) = named(&config, options.config.as_deref());
    for (code, files) in [(Code::Config, config_files), (Code::Data, service_files)] {
        let closed = closed(&files);
        if !closed.is_empty() && geteuid().is_root() {
            return Err(Failure::message(code, closed.join("\n")));
        }
        for problem in closed {
            // A user who checks a configuration may keep it at another path than the unit.
            writeln!(out, "note: {problem}").context("writing a notice")?;
        }
    }
    if let Some(notice) = selection_notice(&config) {
        writeln!(out, "{notice}").context("writing a notice")?;
    }
    let of_credentials = config.kubernetes_settings().map(|settings| check_credentials(&settings)).transpose()?;
    let directory = &config.files.directory;
    let files::Checked { problems, notices } = files::check(directory, is_open_for_writing);
    let unserved = unserved(&config);
    for notice in of_credentials.into_iter().flatten().chain(notices).chain(unserved.notices) {
        writeln!(out, "{notice}").context("writing a notice")?;
    }
    let problems: Vec<String> = problems.iter().map(ToString::to_string).chain(unserved.problems).collect();
    if problems.is_empty() {
        let summary = writeln!(out, "Configuration OK. Every service file in {} is valid.", directory.display());
        return Ok(summary.context("writing the summary")?);
    }
    Err(Failure::message(Code::Data, problems.join("\n")))
}

/// Returns a line if a start with this selection of Kubernetes services would leave out most of those that the state
/// directory has. A state that cannot be read is no problem of the configuration.
fn selection_notice(config: &Config) -> Option<String> {
    config.kubernetes_settings()?;
    let path = state_file::path(&config.state.directory);
    let held = state_file::held(&path, &config.kubernetes.selection()).ok().flatten()?;
    Some(format!("note: {held} ({}): nodelb will keep the others as last known until `nodelb accept`", path.display()))
}

/// Directories of this host that `nodelb.service` does not see: `ProtectHome=` and `PrivateTmp=`.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

/// Those of them that contain home directories.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Directories that the unit may write to.
const WRITABLE: [&str; 2] = ["/var/lib/nodelb", "/run/nodelb"];

/// Returns a line for each path that the user of this command may open but the unit may not.
fn unit_notices(config: &Config) -> Vec<String> {
    let (kubernetes, state) = (&config.kubernetes, &config.state.directory);
    let paths = [
        ("files.directory", &config.files.directory),
        ("kubernetes.kubeconfig", &kubernetes.kubeconfig),
        ("kubernetes.token-file", &kubernetes.token_file),
        ("kubernetes.ca-file", &kubernetes.ca_file),
        ("state.directory", state),
    ];
    let below = |path: &Path, directories: &[&'static str]| directories.iter().copied().find(|it| path.starts_with(it));
    let hidden = paths.into_iter().filter_map(|(key, path)| {
        let directory = below(path, &HIDDEN)?;
        Some(format!("note: {key}: nodelb.service cannot see {directory} of the host; move the file to /etc/nodelb"))
    });
    let is_writable = below(state, &WRITABLE).or(below(state, &HIDDEN)).is_some();
    let state = (!is_writable).then(|| {
        let path = state.display();
        format!("note: state.directory: nodelb.service may not write there unless it has ReadWritePaths={path}")
    });
    hidden.chain(state).chain(cgroup_notice(config)).chain(pin_notices(config)).collect()
}

/// Returns a line for each other pin directory with attached programs, if root runs the command. They would run first, by
/// maps that no process updates any more.
fn pin_notices(config: &Config) -> Vec<String> {
    let pin_directory = &config.datapath.pin_directory;
    let others = foreign_pin_directories(pin_directory, config.datapath.cgroup());
    let notice = |other: PathBuf| {
        format!(
            "note: datapath.pin-directory: programs of nodelb that are pinned in {other} are attached as well: unless another \
             nodelb is meant to run here, stop nodelb and run nodelb cleanup --pin-directory {other} before it starts with {}",
            pin_directory.display(),
            other = other.display()
        )
    };
    others.into_iter().map(notice).collect()
}

/// The cgroup of nodelb.service without a drop-in, below the root.
const UNIT_CGROUP: &str = "system.slice/nodelb.service";

/// Returns a line if `nodelb.service` refuses to start unless it runs in another slice than the usual one.
fn cgroup_notice(config: &Config) -> Option<String> {
    let (cgroup, unit) = (config.datapath.cgroup()?, own_cgroup::root()?.join(UNIT_CGROUP));
    (!unit.starts_with(cgroup)).then(|| {
        format!(
            "note: datapath.cgroup: nodelb starts only in {} or in a cgroup below it, but nodelb.service is in {} unless a \
             drop-in sets Slice=",
            cgroup.display(),
            unit.display()
        )
    })
}

/// Returns a line for each address of the admin API that this host does not have. Ports are not tested, because a
/// running daemon uses them.
fn listen_notices(config: &Config) -> Vec<String> {
    let notice = |address: &SocketAddr| {
        let error = TcpListener::bind((address.ip(), 0)).err()?;
        Some(format!(
            "note: admin.listen: {address} cannot be opened here ({error}): nodelb runs without it and retries"
        ))
    };
    config.admin.listen.iter().filter_map(notice).collect()
}

/// Returns lines if the source ports of connections to backends on other nodes are impossible or unfavourable on this
/// host, or if no NodePort may have them.
fn snat_notices(config: &Config) -> Vec<String> {
    if !config.packets.is_on() {
        return Vec::new();
    }
    let reserved = config.guard().source_ports.map(|ports| {
        let (first, last) = ports.into_inner();
        format!("note: NodePorts from {first} to {last} are refused, because packets.snat-ports contains these ports")
    });
    let notice = match devices::source_ports(config.packets.snat_ports.clone(), config.datapath.nodeport_range.clone())
    {
        Ok((_, overlap)) => overlap.map(|overlap| format!("note: {overlap}")),
        Err(refused) => Some(format!("note: {refused}; connections from outside the node will not be translated")),
    };
    reserved.into_iter().chain(notice).collect()
}

/// Returns all paths that the daemon opens: the configuration with the files that it names for Kubernetes, and the
/// service files.
fn named(config: &Config, path: Option<&Path>) -> (Vec<ServiceAccess>, Vec<ServiceAccess>) {
    let kubernetes = config.kubernetes_settings();
    let path = path.unwrap_or(Path::new(DEFAULT_PATH));
    // A file in a home directory is a draft: the unit cannot see it anyway.
    let is_draft = HOMES.iter().any(|home| path.starts_with(home));
    let mut named = Vec::from_iter((!is_draft).then(|| ("the configuration", path.into(), Use::Read)));
    if let Some(Named { files, plugin }) = kubernetes.as_ref().and_then(credentials::named) {
        let files = files.into_iter().filter(|file| credstore::out_of_reach(file).is_none());
        named.extend(files.map(|file| ("the credentials for Kubernetes", file, Use::Read)));
        named.extend(plugin.map(|plugin| ("the exec plugin", plugin, Use::Run)));
    }
    let directory = &config.files.directory;
    let mut services = vec![("files.directory", directory.clone(), Use::List)];
    services.extend(files::names(directory).into_iter().map(|file| ("a service file", file, Use::Read)));
    (named, services)
}

/// Returns notices about the credentials. Credentials that only the unit has are not checked.
fn check_credentials(settings: &Settings) -> Result<Vec<String>, Failure> {
    let files = [&settings.kubeconfig, &settings.token_file, &settings.ca_file];
    let elsewhere: Vec<&str> = files.into_iter().flatten().filter_map(|file| credstore::out_of_reach(file)).collect();
    if elsewhere.is_empty() {
        return credentials::check(settings).map_err(|error| Failure::new(Code::Config, error));
    }
    let names = elsewhere.join(", ");
    Ok(vec![format!(
        "not checked here: systemd passes the credentials ({names}) when it starts nodelb.service; see its journal for \
         problems"
    )])
}

/// How a file or a directory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Use {
    Read,
    /// A program is started.
    Run,
    /// A directory's entries are read.
    List,
}

impl Use {
    /// Returns the permission bits that the use requires.
    fn bits(self) -> u32 {
        match self {
            Self::Read => 0o4,
            Self::Run => 0o1,
            Self::List => 0o5,
        }
    }
}

type ServiceAccess = (&'static str, PathBuf, Use);

/// Returns a line for each path that is closed to the unit. A missing file is reported by the code that opens it.
pub(super) fn closed(named: &[ServiceAccess]) -> Vec<String> {
    let mut reported = BTreeSet::new();
    let closed = named.iter().filter_map(|(what, path, wanted)| {
        let (at, metadata, bits) = first_closed(path, *wanted)?;
        // Many files may lie below the same directory.
        if !reported.insert(at.clone()) {
            return None;
        }
        let (how, remedy) = if bits == 0o1 && at != *path && metadata.is_dir() {
            ("search".into(), "o+x")
        } else if metadata.is_dir() {
            (wanted.to_string(), "o+rx")
        } else {
            (wanted.to_string(), if *wanted == Use::Run { "o+x" } else { "o+r" })
        };
        let (at, owner, group, mode) =
            (at.display(), metadata.uid(), metadata.gid(), metadata.permissions().mode() & 0o7777);
        let remedy = match owner {
            0 => format!("`chmod u{} {at}`", &remedy[1..]),
            _ => {
                let closed_to_owner = (bits << 6) & !mode != 0;
                let and = if closed_to_owner { format!(" && chmod u{} {at}", &remedy[1..]) } else { String::new() };
                format!("`chown root {at}{and}` (or `chmod {remedy} {at}` if it contains no secret)")
            }
        };
        Some(format!(
            "{what} ({}): nodelb.service may not {how} {at} (owner {owner}, group {group}, mode {mode:04o}), because \
             its root user has no capability to override modes; run {remedy}",
            path.display()
        ))
    });
    closed.collect()
}

/// Returns the first closed directory or file on the way to a path, and the permission bits that it requires.
fn first_closed(path: &Path, wanted: Use) -> Option<(PathBuf, Metadata, u32)> {
    // The directories of a symbolic link count as well as those of its target.
    let target = fs::canonicalize(path).ok()?;
    let ways = [path, &target].map(|end| end.ancestors().skip(1).map(Path::to_path_buf).collect::<Vec<_>>());
    let directories = ways.into_iter().flat_map(|way| way.into_iter().rev()).filter(|it| !it.as_os_str().is_empty());
    let all = directories.map(|directory| (directory, 0o1)).chain(std::iter::once((target, wanted.bits())));
    all.filter_map(|(at, bits)| fs::metadata(&at).ok().map(|metadata| (at, metadata, bits)))
        .find(|(_, metadata, bits)| !grants(metadata.uid(), metadata.gid(), metadata.permissions().mode(), *bits))
}

/// Whether user 0 with group 0 has these bits. As in the kernel, only the first matching class decides.
fn grants(owner: u32, group: u32, mode: u32, bits: u32) -> bool {
    let granted = match (owner, group) {
        (0, _) => mode >> 6,
        (_, 0) => mode >> 3,
        _ => mode,
    };
    granted & bits == bits
}

#[cfg(test)]
#[path = "tests/check.rs"]
mod tests;
