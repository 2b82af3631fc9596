//! Reads which servers are to be asked: resolv.conf(5) and the network interfaces of this host.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use nix::net::if_::if_nametoindex;

use super::server_address::DnsServer;
use super::servers::of_resolv_conf;

/// The configured servers, without any those of resolv.conf(5), and what is wrong with others. May block.
///
/// # Errors
/// The file exists and cannot be read.
pub(super) fn read(configured: &[DnsServer], resolv_conf: &Path) -> io::Result<(Vec<SocketAddr>, Vec<String>)> {
    let zone_of = |name: &str| if_nametoindex(name).ok();
    let (mut servers, mut problems) = (Vec::new(), Vec::new());
    for server in configured {
        match server.resolve(&zone_of) {
            Ok(address) => servers.push(address),
            Err(why) => problems.push(format!("dns.servers: `{server}` {why}; it is not asked")),
        }
    }
    if !configured.is_empty() {
        return Ok((servers, problems));
    }
    // Without the file, the C library asks this host, too.
    let text = match std::fs::read(resolv_conf) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let (servers, problems) = of_resolv_conf(&String::from_utf8_lossy(&text), &zone_of);
    let path = resolv_conf.display();
    Ok((servers, problems.into_iter().map(|problem| format!("{path}: {problem}")).collect()))
}
