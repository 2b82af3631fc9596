//! The real BPF objects with real sockets.
mod sandbox;

#[test]
fn smoke() {
    sandbox::run("smoke", |env| {
        assert!(env.bpffs.exists());
        assert!(env.cgroup.exists());
        std::net::TcpListener::bind("192.0.2.77:80").unwrap();
        std::net::TcpListener::bind("[2001:db8:b::77]:80").unwrap();
        println!("{}", std::fs::read_to_string("/proc/self/cgroup").unwrap());
    });
}
