//! `nodelb-apiserver`: a Kubernetes API server for demonstrations. It keeps its state in memory
//! only.

mod control;

use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use ipnet::IpNet;
use nodelb_apiserver::{Cluster, Ranges, Replica, ServeOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::control::{Control, send};

/// A Kubernetes API server for nodelb's demonstrations: real protocol, no cluster
#[derive(Debug, Parser)]
struct Arguments {
    /// Serve the cluster at this address; may be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: Vec<SocketAddr>,
    /// Write ca.crt, admin.kubeconfig and nodelb.kubeconfig to this directory
    #[arg(long, value_name = "DIR", required_unless_present = "send")]
    directory: Option<PathBuf>,
    /// Also write a kubeconfig of the user nodelb to this file; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeconfig: Vec<PathBuf>,
    /// Apply this manifest before serving; may be repeated
    #[arg(long, value_name = "FILE")]
    apply: Vec<PathBuf>,
    /// The cluster's service CIDRs, the first one primary
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/16")]
    service_cidr: Vec<IpNet>,
    /// Accept commands (one line of JSON each) on this unix socket
    #[arg(long, value_name = "PATH", required_unless_present = "directory")]
    control: Option<PathBuf>,
    /// Do not serve; send this command to the server at --control; may be repeated
    #[arg(long, value_name = "COMMAND", requires = "control")]
    send: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if !arguments.send.is_empty() {
        return send(&arguments.control.unwrap_or_default(), &arguments.send);
    }
    let cluster = Cluster::with(Ranges { addresses: arguments.service_cidr.clone(), ..Ranges::default() })?;
    for file in &arguments.apply {
        let manifest = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        cluster.apply(&manifest).with_context(|| format!("cannot apply {}", file.display()))?;
    }
    let replicas = arguments.listen.iter().map(|address| serve(&cluster, *address));
    let replicas = replicas.collect::<anyhow::Result<Vec<Replica>>>()?;
    write_credentials(&cluster, &replicas, &arguments)?;
    wait(cluster, replicas, arguments.control.as_deref())
}

fn serve(cluster: &Cluster, address: SocketAddr) -> anyhow::Result<Replica> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    cluster.serve(listener, ServeOptions::default())
}

fn write_credentials(cluster: &Cluster, replicas: &[Replica], arguments: &Arguments) -> anyhow::Result<()> {
    let urls: Vec<String> = replicas.iter().map(Replica::url).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    if let Some(directory) = &arguments.directory {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        write_secret(&directory.join("ca.crt"), cluster.ca_pem())?;
        write_secret(&directory.join("admin.kubeconfig"), &cluster.admin_kubeconfig(&urls)?)?;
        write_secret(&directory.join("nodelb.kubeconfig"), &cluster.kubeconfig(&urls)?)?;
    }
    for file in &arguments.kubeconfig {
        write_secret(file, &cluster.kubeconfig(&urls)?)?;
    }
    Ok(())
}

fn write_secret(path: &Path, content: &str) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Prints `ready` and serves until SIGTERM or SIGINT.
fn wait(cluster: Cluster, replicas: Vec<Replica>, control: Option<&Path>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _running = match control {
        None => Some(replicas),
        Some(path) => {
            // Remove the stale socket of a server that has ended.
            let _ = fs::remove_file(path);
            let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
            std::thread::spawn(move || Control::new(cluster, replicas).serve(&listener));
            None
        }
    };
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        writeln!(io::stdout(), "ready")?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok::<_, io::Error>(())
    })?;
    if let Some(path) = control {
        // The socket is no longer needed.
        let _ = fs::remove_file(path);
    }
    Ok(())
}
