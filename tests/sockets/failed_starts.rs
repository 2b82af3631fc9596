//! Starts that fail: they leave nothing that was not there before.

use std::collections::BTreeSet;
use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nodelb_datapath::{KernelDatapath, OpenError, Options, hidden_links};

use super::hidden::attach_namesakes;
use super::lifecycle::mount_over;
use super::{Kernel, in_sandbox, options, part, part_command};

/// Whether no program of nodelb is attached, and there is no pin directory.
fn is_nothing_left(options: &Options) -> bool {
    // Pinned links would not be listed, but then there is a directory.
    !options.pin_directory.exists() && hidden_links(options.cgroup.as_deref()).unwrap().is_empty()
}

/// The kernel allows 64 programs at a hook of a cgroup.
#[test]
fn a_full_hook_is_named_with_its_programs_and_nothing_is_left() {
    in_sandbox("sockets::failed_starts::a_full_hook_is_named_with_its_programs_and_nothing_is_left", |env| {
        let options = options(env);
        let mut links = attach_namesakes(env, 64);
        let error = KernelDatapath::open(&options).unwrap_err();
        let OpenError::Full { hook: "connect4", programs, .. } = &error else { panic!("{error}") };
        assert_eq!(programs.len(), 64);
        assert!(error.to_string().contains("64 connect4 (ids "), "{error}");
        assert!(is_nothing_left(&options));

        links.pop();
        let kernel = Kernel::open(&options);
        assert_eq!(kernel.datapath.verify_links(), [], "there is room for one");
        drop(kernel);
        drop(Kernel::open(&options));
        // Another program takes the place of nodelb's.
        fs::remove_dir_all(&options.pin_directory).unwrap();
        links.extend(attach_namesakes(env, 1));
        assert!(matches!(KernelDatapath::open(&options).unwrap_err(), OpenError::Full { hook: "connect4", .. }));
        assert!(is_nothing_left(&options));
    });
}

/// Descriptors run out at every step of the first start in turn. Each start is a process of its own, because libbpf
/// remembers what a kernel lacks.
#[test]
fn a_first_start_that_fails_leaves_nothing() {
    const NAME: &str = "sockets::failed_starts::a_first_start_that_fails_leaves_nothing";
    /// The number of the first descriptor after those of standard input and output.
    const FIRST_FREE: u32 = 3;
    in_sandbox(NAME, |env| {
        let options = options(env);
        if let Some(limit) = part() {
            let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, limit.parse().unwrap(), hard).unwrap();
            let opened = KernelDatapath::open(&options);
            setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
            return drop(opened.unwrap_or_else(|error| panic!("{error}")));
        }
        let fails = |limit: &u32| {
            let start = part_command(NAME, &limit.to_string()).output().expect("the same test again");
            let error = String::from_utf8_lossy(&start.stderr).into_owned();
            let is_failure = !start.status.success();
            assert!(!is_failure || is_nothing_left(&options), "with {limit} descriptors: {error}");
            is_failure
        };
        let failures = (FIRST_FREE..500).take_while(fails).count();
        assert!((30..500).contains(&failures), "{failures} starts have failed");
    });
}

#[test]
fn a_start_that_cannot_attach_all_programs_attaches_none_that_was_not_there() {
    const NAME: &str =
        "sockets::failed_starts::a_start_that_cannot_attach_all_programs_attaches_none_that_was_not_there";
    in_sandbox(NAME, |env| {
        let options = options(env);
        drop(Kernel::open(&options));
        let links = options.pin_directory.join("v1/links");
        let names = || {
            let names = fs::read_dir(&links).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| !name.contains("direct-return")).collect::<BTreeSet<_>>()
        };
        for name in names().iter().filter(|name| *name != "recvmsg4") {
            fs::remove_file(links.join(name)).unwrap();
        }
        // No pin can replace a mount point.
        fs::create_dir(links.join("sendmsg4")).unwrap();
        mount_over(&links.join("sendmsg4"), "tmpfs");
        let error = KernelDatapath::open(&options).unwrap_err().to_string();
        assert!(error.contains("links/sendmsg4"), "{error}");
        assert_eq!(names(), ["recvmsg4", "sendmsg4"].map(str::to_owned).into(), "what was there stays");
        assert_eq!(hidden_links(options.cgroup.as_deref()).unwrap(), [], "no other link is attached");
        assert!(options.pin_directory.join("v1/g1/slots").exists());
    });
}
