//! unbound, a DNS server and resolver, at an address of the sandbox.

use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::{Host, eventually};
use crate::sandbox;

/// A running DNS server, which ends with the test.
pub(crate) struct Unbound {
    config: String,
    process: Child,
}

impl Unbound {
    /// `more` are further lines of the configuration, which continue its section `server`.
    pub(crate) fn start(host: &Host, at: &str, more: &str) -> Self {
        let file = |kind: &str| format!("unbound-{at}.{kind}");
        let text = format!(
            "server:\n  interface: {at}@53\n  do-daemonize: no\n  chroot: \"\"\n  username: \"\"\n  pidfile: \"\"\n  \
             directory: \"/\"\n  use-syslog: no\n  logfile: {:?}\n  access-control: 0.0.0.0/0 allow\n  module-config: \"iterator\"\n\
             {more}remote-control:\n  control-enable: yes\n  control-interface: {:?}\n  control-use-cert: no\n",
            host.path(&file("log")),
            host.path(&file("sock")),
        );
        host.write(&file("conf"), &text);
        let config = host.path(&file("conf")).display().to_string();
        let mut command = sandbox::program("unbound");
        command.args(["-d", "-c", &config]).stdout(Stdio::null()).stderr(Stdio::null());
        let unbound = Self { config, process: command.spawn().unwrap() };
        eventually("the DNS server", || unbound.try_control(&["status"]));
        unbound
    }

    fn try_control(&self, arguments: &[&str]) -> bool {
        let mut command = sandbox::program("unbound-control");
        command.args(["-c", &self.config]).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap().success()
    }

    pub(crate) fn control(&self, arguments: &[&str]) {
        assert!(self.try_control(arguments), "unbound-control {arguments:?}");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Replaces the records of a name. The name has none for a moment.
    pub(crate) fn replace(&self, name: &str, records: &[&str]) {
        self.control(&["local_data_remove", name]);
        records.iter().for_each(|record| self.control(&["local_data", record]));
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
