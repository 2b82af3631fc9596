//! The types of configuration values that other documents do not have: how each is read, printed and checked.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ipnet::IpNet;
use nodelb_core::model::addr::{Addr, parse_net};
use nodelb_core::model::node::NodePortAddress;
use nodelb_kube::apiserver::credstore;

use crate::document::{Mismatches, Setting, Value, read_text};

/// Where the maps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the kernel: connections are translated.
    Kernel,
    /// In this process: everything works except translation.
    Memory,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "memory" => Ok(Self::Memory),
            _ => Err(format!("`{text}` is not a datapath mode (expected \"kernel\" or \"memory\")")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
        })
    }
}

/// The sockets that are ended when their backend is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// None.
    None,
    /// UDP sockets.
    Udp,
    /// UDP and TCP sockets.
    All,
}

impl FromStr for Disconnect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "udp" => Ok(Self::Udp),
            "all" => Ok(Self::All),
            _ => Err(format!("`{text}` is none of the choices (expected \"none\", \"udp\" or \"all\")")),
        }
    }
}

impl fmt::Display for Disconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Udp => "udp",
            Self::All => "all",
        })
    }
}

/// An inclusive range of ports, written `30000-32767`. The first port is not above the last, and neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
}

impl From<PortRange> for RangeInclusive<u16> {
    fn from(range: PortRange) -> Self {
        range.first..=range.last
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('-').and_then(|(first, last)| {
            Some(Self { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? })
        });
        parsed
            .filter(|range| 0 < range.first && range.first <= range.last)
            .ok_or_else(|| format!("`{text}` is not a port range (expected FIRST-LAST, such as 30000-32767)"))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Setting for Mode {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_text(value, "a string", mismatches)
    }
}

impl Setting for Disconnect {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_text(value, "a string", mismatches)
    }
}

impl Setting for PortRange {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_text(value, "a string such as \"30000-32767\"", mismatches)
    }
}

impl Setting for NodePortAddress {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let text = String::read(value, mismatches)?;
        let parsed = text.parse().map_err(|error| format!("{error}, or \"primary\", or \"loopback\""));
        parsed.map_err(|message| mismatches.push((value.span(), message))).ok()
    }
}

impl Setting for SocketAddr {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let text = String::read(value, mismatches)?;
        let parsed = text.parse().map_err(|_not_a_socket_address| {
            format!("`{text}` is not an address with a port (expected like 127.0.0.1:9890 or [::1]:9890)")
        });
        parsed.map_err(|message| mismatches.push((value.span(), message))).ok()
    }
}

impl Setting for IpNet {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let text = String::read(value, mismatches)?;
        parse_net(&text).map_err(|error| mismatches.push((value.span(), error.to_string()))).ok()
    }
}

impl Setting for tracing::Level {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let text = String::read(value, mismatches)?;
        let levels = [Self::ERROR, Self::WARN, Self::INFO, Self::DEBUG, Self::TRACE];
        let level = levels.into_iter().find(|level| level.as_str().to_ascii_lowercase() == text);
        if level.is_none() {
            let expected = "\"error\", \"warn\", \"info\", \"debug\" or \"trace\"";
            mismatches.push((value.span(), format!("`{text}` is not a log level (expected {expected})")));
        }
        level
    }
}

/// A value that can be written as TOML such that reading it returns the same value.
pub(super) trait TomlValue {
    fn to_toml(&self) -> String;
}

pub(super) fn quoted(text: impl fmt::Display) -> String {
    toml::Value::String(text.to_string()).to_string()
}

impl TomlValue for u32 {
    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl TomlValue for PathBuf {
    fn to_toml(&self) -> String {
        quoted(self.display())
    }
}

impl TomlValue for bool {
    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl TomlValue for tracing::Level {
    fn to_toml(&self) -> String {
        quoted(self.as_str().to_ascii_lowercase())
    }
}

impl<T: TomlValue> TomlValue for Vec<T> {
    fn to_toml(&self) -> String {
        let items: Vec<_> = self.iter().map(TomlValue::to_toml).collect();
        format!("[{}]", items.join(", "))
    }
}

macro_rules! written_as_displayed {
    ($($type:ty),+) => {
        $( impl TomlValue for $type {
            fn to_toml(&self) -> String {
                quoted(self)
            }
        } )+
    };
}

written_as_displayed!(String, NodePortAddress, SocketAddr, IpNet, Disconnect, Mode, PortRange);

/// The problem of a value that has the right type. Each message says what to do.
pub(super) type Check = Result<(), String>;

pub(super) fn absolute(path: &Path) -> Check {
    if path.is_absolute() { Ok(()) } else { Err(format!("`{}` must be an absolute path", path.display())) }
}

/// The mount point of the whole BPF file system on every host.
const BPFFS: &str = "/sys/fs/bpf";

/// A directory that only nodelb writes to. The start refuses other mount points of a BPF file system.
pub(super) fn own_directory(path: &Path) -> Check {
    absolute(path)?;
    match path == Path::new(BPFFS) {
        true => Err(format!("`{BPFFS}` is everybody's; name a directory in it, such as `{BPFFS}/nodelb`")),
        false => Ok(()),
    }
}

pub(super) fn absolute_or_empty(path: &Path) -> Check {
    if path.as_os_str().is_empty() { Ok(()) } else { absolute(path) }
}

/// A file with credentials, or the name of a systemd credential.
pub(super) fn file_or_credential(path: &Path) -> Check {
    match credstore::name_of(path)? {
        Some(_) => Ok(()),
        None => absolute_or_empty(path).map_err(|problem| format!("{problem}, or credential:NAME")),
    }
}

/// The longest path in a `sockaddr_un`, in bytes, without the terminating zero (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

pub(super) fn socket_path(path: &Path) -> Check {
    absolute_or_empty(path)?;
    match path.as_os_str().len() {
        0..=MAX_SOCKET_PATH => Ok(()),
        len => Err(format!("`{}` has {len} bytes, a socket's path has at most {MAX_SOCKET_PATH}", path.display())),
    }
}

pub(super) fn between<const MIN: u32, const MAX: u32>(value: &u32) -> Check {
    if (MIN..=MAX).contains(value) { Ok(()) } else { Err(format!("{value} is not in {MIN}..={MAX}")) }
}

pub(super) fn name_or_empty(name: &str) -> Check {
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.len() <= 253 && name.bytes().all(is_name) {
        Ok(())
    } else {
        Err(format!("`{name}` may have only letters, digits, `-`, `_` and `.`, at most 253 of them"))
    }
}

/// White space around the name and its case are ignored, see [`nodelb_core::model::names::node_name`].
pub(super) fn node_name_or_empty(name: &str) -> Check {
    name_or_empty(name.trim())
}

pub(super) fn loopback(listen: &[SocketAddr]) -> Check {
    for addr in listen {
        if !Addr::from(addr.ip()).is_loopback() {
            return Err(format!(
                "{addr} is not a loopback address; the admin API is for this host only: use 127.0.0.1"
            ));
        }
        if addr.port() == 0 {
            return Err(format!("{addr} has port 0; choose a port, so that the command line can find it"));
        }
    }
    once(listen)
}

fn once(listen: &[SocketAddr]) -> Check {
    let mut seen = BTreeSet::new();
    match listen.iter().find(|addr| !seen.insert(**addr)) {
        Some(twice) => Err(format!("{twice} is listed twice; remove one")),
        None => Ok(()),
    }
}

pub(super) fn reachable(listen: &[SocketAddr]) -> Check {
    for addr in listen {
        if addr.ip().is_multicast() {
            return Err(format!("{addr} is a multicast address, where nobody can listen; use [::] or the node's own"));
        }
        if addr.port() == 0 {
            return Err(format!("{addr} has port 0; choose one, so that load balancers can find it"));
        }
    }
    once(listen)
}
