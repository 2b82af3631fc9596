//! A set-user-ID program, which runs as another user than the one who starts it: it reaches the backends as every program
//! does, also while nodelb is killed and the backends are replaced.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nodelb_prober::SetAtEnd;

use crate::host::{Host, backend, eventually, is_served_by, service};
use crate::sandbox;

const SERVICE: &str = "198.51.100.10:80";
const NONE: &str = "198.51.100.20:80";
const OLD: [&str; 2] = ["192.0.2.11:8080", "192.0.2.12:8080"];
const NEW: [&str; 2] = ["192.0.2.13:8080", "192.0.2.14:8080"];
/// The user who starts the program, and the owner of the program.
const USER: u32 = 2_001;
const OWNER: u32 = 2_002;

/// Compiles the program, and makes it set-user-ID.
fn build(to: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/connect.c");
    let output =
        sandbox::program("clang").args(["-Wall", "-Werror", "-O1", "-o"]).arg(to).arg(source).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    chown(to, Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(to, Permissions::from_mode(0o4755)).unwrap();
    to.to_path_buf()
}

/// Runs the program as the user, who has no capability.
fn run(program: &Path, transport: &str, to: &str, count: u32) -> Output {
    let (address, port) = to.rsplit_once(':').unwrap();
    let (user, count) = (USER.to_string(), count.to_string());
    let mut command = sandbox::program("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(program);
    command.args([transport, address, port, &count]).stdin(Stdio::null()).output().unwrap()
}

/// The names of the backends; panics if one socket has failed.
fn names(output: &Output) -> BTreeSet<String> {
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some(format!("{USER} {OWNER}").as_str()), "real and effective user");
    let name = |line: &str| {
        let (peer, name) = line.split_once(' ').unwrap();
        assert_eq!(peer, SERVICE, "getpeername");
        name.to_owned()
    };
    lines.map(name).collect()
}

#[test]
fn a_set_user_id_program_reaches_backends_while_everything_changes() {
    sandbox::run("setuid::a_set_user_id_program_reaches_backends_while_everything_changes", |sandbox| {
        let host = Host::new(sandbox);
        let program = build(&host.path("connect"));
        let _backends = [OLD, NEW].map(|both| both.map(|at| backend(at, at)));
        let none = service("shop/none", &[NONE], &[]);
        host.serve("none.toml", &none);
        host.serve("a.toml", &service("shop/web", &[SERVICE], &OLD));
        let daemon = host.start();
        for transport in ["tcp", "udp"] {
            assert_eq!(names(&run(&program, transport, SERVICE, 40)), OLD.map(str::to_owned).into(), "{transport}");
            assert_eq!(
                run(&program, transport, NONE, 1).status.code(),
                Some(Errno::ECONNREFUSED as i32),
                "{transport}"
            );
        }

        let is_over = AtomicBool::new(false);
        let daemon = thread::scope(|scope| {
            let over = SetAtEnd(&is_over);
            let clients = ["tcp", "udp"].map(|transport| {
                let (program, is_over) = (&program, &is_over);
                scope.spawn(move || {
                    let mut rounds = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        names(&run(program, transport, SERVICE, 100));
                        rounds += 1;
                    }
                    rounds
                })
            });
            let mut daemon = daemon;
            for backends in [NEW, OLD, NEW] {
                daemon.kill();
                thread::sleep(Duration::from_millis(300));
                host.serve("a.toml", &service("shop/web", &[SERVICE], &backends));
                daemon = host.start();
                let served = backends.map(|at| format!("{at}/TCP"));
                let served = served.each_ref().map(String::as_str);
                eventually("the other backends", || is_served_by(&format!("{SERVICE}/TCP"), &served));
                thread::sleep(Duration::from_millis(300));
            }
            drop(over);
            for client in clients {
                assert!(client.join().unwrap() > 5, "there was little traffic");
            }
            daemon
        });
        for transport in ["tcp", "udp"] {
            assert_eq!(names(&run(&program, transport, SERVICE, 40)), NEW.map(str::to_owned).into(), "{transport}");
        }
        daemon.stop();
    });
}
