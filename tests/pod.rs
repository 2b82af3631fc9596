//! A pod: a network namespace that reaches the backends of the sandbox's host, and nothing else,
//! through a veth pair. Removed at the end of the test.

use std::fs::File;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use crate::reach::reach;
use crate::sandbox::{BACKENDS_V4, BACKENDS_V6, command};

/// A pod; see the module.
#[derive(Debug)]
pub(crate) struct Pod {
    namespace: File,
}

impl Pod {
    /// Creates a pod. `number` is unique in the sandbox and less than 32. The host reaches number 0
    /// at 203.0.113.130 and 2001:db8:a:0::130, the next one at .134 and so on.
    pub(crate) fn new(number: u8) -> Self {
        assert!(number < 32, "there is room for 32 pods in 203.0.113.128/25");
        let (host, pod) = (129 + 4 * number, 130 + 4 * number);
        let [host4, pod4] = [host, pod].map(|last| format!("203.0.113.{last}"));
        let [host6, pod6] = [host, pod].map(|last| format!("2001:db8:a:{number:x}::{last}"));
        let interface = format!("pod{number}");
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            ip("link set lo up");
            // A network namespace is named by a process: the main thread of this one is still on
            // the host.
            ip(&format!("link add eth0 type veth peer name {interface} netns {}", std::process::id()));
            ip(&format!("address add {pod4}/30 dev eth0"));
            ip(&format!("address add {pod6}/64 dev eth0 nodad"));
            ip("link set eth0 up");
            File::open("/proc/thread-self/ns/net").expect("this thread's network namespace")
        };
        let namespace = thread::scope(|scope| scope.spawn(inside).join().expect("a pod"));
        ip(&format!("address add {host4}/30 dev {interface}"));
        ip(&format!("address add {host6}/64 dev {interface} nodad"));
        ip(&format!("link set {interface} up"));
        let pod = Self { namespace };
        pod.run(|| {
            ip(&format!("route add {} via {host4}", BACKENDS_V4));
            ip(&format!("route add {} via {host6}", BACKENDS_V6));
            [&host4, &host6].into_iter().for_each(|host| reach(host));
        });
        pod
    }

    /// Runs `work` in a thread inside the pod and returns its result. Its sockets and processes
    /// stay in the pod.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            setns(&self.namespace, CloneFlags::CLONE_NEWNET).expect("entering the pod");
            work()
        };
        let result = thread::scope(|scope| scope.spawn(inside).join());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn ip(words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    command("ip", &words);
}
