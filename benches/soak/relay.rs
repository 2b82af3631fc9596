//! A process that forwards an address to an apiserver. Killing it has the same effect on nodelb as
//! killing the apiserver: every connection breaks and the port refuses. It runs the same binary; an
//! environment variable selects this mode.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::forward::join;

/// `FROM>TO`, set in the process that is a relay.
const VARIABLE: &str = "NODELB_SOAK_RELAY";

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    server: SocketAddr,
    child: Child,
}

impl Relay {
    /// Runs the relay until it is killed if the environment selects it; otherwise returns false.
    pub(crate) fn serve_if_asked() -> bool {
        let Ok(text) = std::env::var(VARIABLE) else { return false };
        let (from, to) = text.split_once('>').unwrap();
        let to: SocketAddr = to.parse().unwrap();
        for client in TcpListener::bind(from).unwrap().incoming() {
            let client = client.unwrap();
            thread::spawn(move || TcpStream::connect(to).and_then(|server| join(&client, &server)));
        }
        true
    }

    pub(crate) fn start((address, server): (SocketAddr, SocketAddr)) -> Self {
        let relay = Self { address, server, child: spawn(address, server) };
        relay.wait_until_it_listens();
        relay
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.address, self.server);
        self.wait_until_it_listens();
    }

    fn wait_until_it_listens(&self) {
        for _ in 0..1000 {
            if TcpStream::connect(self.address).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the relay does not listen on {}", self.address);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(address: SocketAddr, server: SocketAddr) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(VARIABLE, format!("{address}>{server}")).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}
