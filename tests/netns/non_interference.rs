//! Non-interference between objects, with maps in the kernel, which a restart keeps.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::{Host, NODELB, UNDER_WAY};
use crate::interference::{Place, play_all};
use crate::sandbox;

struct InKernel {
    host: Host,
    cgroup: PathBuf,
}

impl Place for InKernel {
    fn directory(&self, run: &str) -> PathBuf {
        self.host.path(&format!("run-{run}"))
    }

    fn command(&self) -> Command {
        Command::new(NODELB)
    }

    fn sections(&self) -> String {
        let (cgroup, pins) = (&self.cgroup, &self.host.pins);
        format!("[packets]\nmode = \"off\"\n[datapath]\ncgroup = {cgroup:?}\npin-directory = {pins:?}\n")
    }

    fn keeps_maps(&self) -> bool {
        true
    }

    fn may_check(&self) -> bool {
        true
    }

    fn reboot(&self, config: &Path) {
        let mut command = Command::new(NODELB);
        command.arg("cleanup").arg("--config").arg(config).env(UNDER_WAY, "0");
        let output = command.output().unwrap();
        assert!(output.status.success(), "cleanup: {output:?}");
    }
}

#[test]
fn what_happens_to_one_service_changes_no_other_in_the_kernel() {
    sandbox::run("non_interference::what_happens_to_one_service_changes_no_other_in_the_kernel", |sandbox| {
        let place = InKernel { host: Host::new(sandbox), cgroup: sandbox.cgroup.clone() };
        play_all(&place, 300, 1);
        place.host.cleanup();
    });
}
