//! Programs whose pins cannot be reached: which of them `nodelb cleanup --hidden` detaches.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, ObjectBuilder};
use nodelb_datapath::{LinkUser, detach_hidden, hidden_links};

use super::lifecycle::mount_over;
use super::{Kernel, in_sandbox, options};
use crate::sandbox::{self, Sandbox, command};

/// The kernel describes the descriptor of a link that was opened by its pin differently from that
/// of a link that was created.
#[test]
fn hidden_links_that_a_restarted_daemon_holds_are_left() {
    in_sandbox("sockets::hidden::hidden_links_that_a_restarted_daemon_holds_are_left", |env| {
        let options = options(env);
        drop(Kernel::open(&options));
        let restarted = Kernel::open(&options);
        let cgroup = options.cgroup.as_deref();
        let hidden = || hidden_links(cgroup).unwrap();
        assert_eq!(hidden(), [], "no link is hidden");
        mount_over(&env.bpffs, "bpf");
        let held = hidden();
        let own = Some(LinkUser::Process(std::process::id()));
        assert!(held.len() == 10 && held.iter().all(|link| link.user == own), "{own:?}: {held:?}");
        assert_eq!(detach_hidden(cgroup, &held).unwrap(), []);
        drop(restarted);
        assert_eq!(detach_hidden(cgroup, &held).unwrap(), [], "only what was listed as unused");
        let unused = hidden();
        assert_eq!(detach_hidden(cgroup, &unused).unwrap(), unused);
        assert_eq!((unused.len(), hidden()), (10, Vec::new()));
    });
}

/// A nodelb in a container has its pins in a mount namespace of its own, and its links must stay while it is stopped for
/// an upgrade.
#[test]
fn links_that_are_pinned_in_another_mount_namespace_are_left() {
    in_sandbox("sockets::hidden::links_that_are_pinned_in_another_mount_namespace_are_left", |env| {
        let options = options(env);
        drop(Kernel::open(&options));
        let mut container = sandbox::program("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(container.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        mount_over(&env.bpffs, "bpf");
        let cgroup = options.cgroup.as_deref();
        let hidden = hidden_links(cgroup).unwrap();
        let links = PathBuf::from(format!("/proc/{}/root{}", container.id(), options.pin_directory.display()));
        let pin = |hook: &str| Some(LinkUser::Pin(links.join("v1/links").join(hook)));
        assert!(hidden.len() == 10 && hidden.iter().all(|link| link.user == pin(link.hook)), "{hidden:?}");
        assert_eq!(detach_hidden(cgroup, &hidden).unwrap(), []);
        container.kill().unwrap();
        container.wait().unwrap();
    });
}

/// Attaches so many programs with the name of a hook of nodelb, each with a map that has the name of one of its maps.
pub(super) fn attach_namesakes(env: &Sandbox, count: usize) -> Vec<Link> {
    let object = std::env::temp_dir().join(format!("nodelb-namesake-{}.o", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/namesake.bpf.c");
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let [from, to] = [&source, &object].map(|path| path.to_str().unwrap());
    command("clang", &["-target", "bpf", "-g", "-O2", "-Wall", "-Werror", &headers, "-c", "-o", to, from]);
    let cgroup = File::open(&env.cgroup).unwrap();
    let attach = |_| {
        let loaded = ObjectBuilder::default().open_file(&object).unwrap().load().unwrap();
        let program = loaded.progs_mut().next().unwrap();
        let mut attached = program.attach_cgroup(cgroup.as_raw_fd());
        for _ in 0..1_000 {
            if attached.is_ok() {
                break;
            }
            // The kernel detaches programs some time after their links were closed.
            std::thread::sleep(std::time::Duration::from_millis(20));
            attached = program.attach_cgroup(cgroup.as_raw_fd());
        }
        attached.unwrap()
    };
    let links = (0..count).map(attach).collect();
    fs::remove_file(&object).unwrap();
    links
}

#[test]
fn a_program_of_other_software_with_the_same_names_is_none_of_nodelb() {
    in_sandbox("sockets::hidden::a_program_of_other_software_with_the_same_names_is_none_of_nodelb", |env| {
        let _links = attach_namesakes(env, 1);
        assert_eq!(hidden_links(options(env).cgroup.as_deref()).unwrap(), []);
    });
}
