//! The only list of messages in the journal. Each has its own id (`MESSAGE_ID=`), and an explanation that `journalctl -x`
//! shows. The systemd catalogue and `docs/journal.md` are generated from it: after a change, with a new random id
//! (`systemd-id128 new`), run `UPDATE=1 cargo test -p nodelb --lib log`. Every logged line has an id (tested).

mod message;

pub use message::{Message, MessageId};

/// Defines each id as a constant, and the table of all messages.
macro_rules! messages {
    ($($name:ident = $id:literal, $subject:literal, $explanation:literal, $remedy:literal;)*) => {
        $(#[doc = concat!($subject, ".")]
        pub const $name: MessageId = MessageId($id);)*

        pub static MESSAGES: &[Message] = &[$(Message {
            name: stringify!($name),
            id: $name,
            subject: $subject,
            explanation: $explanation,
            remedy: $remedy,
        }),*];
    };
}

messages! {
    STARTED = 0x5a34a6697d134ac2aff1692094d948bd, "nodelb starts",
        "The daemon starts. It takes over the BPF maps and programs of an earlier daemon; connections keep working \
         during the start.",
        "Nothing. If the restart was unexpected, the lines before this one show its reason.";
    STOPPED = 0x89a44ff651a64823a74548745980c1a6, "nodelb stops",
        "The daemon received a request to stop. The BPF maps and programs stay in place: existing and new \
         connections keep working with the last known backends.",
        "Nothing. `nodelb cleanup` removes the maps and programs.";
    READY = 0x34af97399f3146468ccc5523db007003, "nodelb is ready",
        "Every source has reported its initial state, and the BPF maps contain it. Alternatively, ten seconds have \
         passed and nodelb serves the last known state, so that units ordered after nodelb can start.",
        "Nothing. If a source is not synced soon, see `nodelb sources` and `nodelb apiservers`.";
    CONFIG_APPLIED = 0x29284ef410114e90b1367c4e7dc7a5af, "The configuration was reloaded",
        "The daemon read the configuration again; the new settings are active.",
        "Nothing.";
    CONFIG_ABSENT = 0xa70222279d814a8e984ed0e4c5e4b596, "There is no configuration",
        "The configuration file does not exist or is empty, so every key has its default. A reload refuses such a file if \
         the active configuration is another one.",
        "If there should be a configuration, write it again and restart nodelb.";
    CONFIG_REFUSED = 0x5f517a990c76439ab1ec198e1e8ccc63, "The configuration was not reloaded",
        "The daemon read the configuration again and found problems. It uses nothing of the new configuration; the \
         previous one stays active.",
        "Correct what the line names (see `nodelb check-config`), then reload again. A restart with this \
         configuration would fail.";
    CONFIG_UNREAD = 0x4c688e2f0ad243929c2f9873e1496928, "Reading the configuration timed out",
        "A reload was requested, and the file system with the configuration does not respond. The previous \
         configuration stays active. The new one takes effect once it can be read.",
        "Find out why the file system hangs. Reload again if the daemon does not report that the configuration was \
         reloaded.";
    CONFIG_NEEDS_RESTART = 0x711b561531e442c19499b5552c1f5423, "Configuration changes need a restart",
        "The named keys have changed. They take effect after a restart.",
        "Restart nodelb at a convenient time. Connections keep working during a restart.";
    MEMORY_ONLY = 0x90cfb1807c56454daaea7fdfc0e1b313, "Connections are not translated",
        "The datapath is `memory`: nodelb does everything except translate connections.",
        "This is useful for tests. To translate connections, set `datapath.mode` to `kernel`, or omit `--datapath`.";
    ATTACHED = 0xb9674b27d7e746f7b2d122f9f94a8ed5, "The BPF programs are attached",
        "nodelb's programs are attached, with new maps or with the maps of an earlier daemon. The daemon has dropped \
         its capabilities, except those that this kernel requires for map access.",
        "Nothing.";
    MAP_ENTRY_CORRUPT = 0xce5673c42b7b449ab5713563a46f6da7, "A map entry was invalid",
        "nodelb cannot have written this entry of its maps. The new maps do not contain it.",
        "Find out which other program writes to the maps in /sys/fs/bpf/nodelb.";
    KERNEL_HAS = 0xa3d58bfcf2584b4aa251febc8ff0c5bd, "Kernel features",
        "The optional kernel features that nodelb found by testing them, and the consequences of each missing one.",
        "Nothing.";
    KERNEL_LACKS = 0x117ebe702efb4f929c9f96eebe651c3e, "A kernel feature is missing",
        "nodelb works without an optional feature that this kernel does not have. The line describes the consequences.",
        "If you need the feature, use a newer kernel, or one that is built with it.";
    ATTACHED_TWICE = 0xb69e95a5079a4b6fa0373ef0a70cd693, "Programs of another pin directory are attached",
        "Links that are pinned in another directory of a BPF file system are attached to the same cgroup. They \
         belong to a nodelb that used another datapath.pin-directory, or to a second nodelb that is running. \
         Connections may follow the maps of that directory. /readyz and nodelb status report this while it lasts.",
        "If no other nodelb should be running, run nodelb cleanup --pin-directory with the directory that the line \
         names.";
    NODEPORTS_UNPROTECTED = 0x36275fd0068b4ad08fe439d87431ccba, "Other processes can bind NodePorts",
        "A process on this host may get the port number of a NodePort. Connections from outside would then reach \
         that process instead of the service, unless nodelb translates them (packets.mode).",
        "Follow the advice in the line. In general, keep NodePorts outside the ephemeral port range, see \
         net.ipv4.ip_local_port_range.";
    HOOKS_FAILED = 0xfcb1abe9aa24442c8cf2909162f0eb8b, "Connections are not translated correctly",
        "The check of the links or the canary shows that nodelb's programs do not run for the processes of this \
         node, or that programs of another nodelb run as well. Connections to service addresses may fail or go to \
         backends that no longer exist. /readyz returns 503 while this lasts.",
        "The line describes the fault and the command that fixes it. Otherwise look for other programs on the cgroup \
         with bpftool cgroup tree, and restart nodelb.";
    HOOKS_WORK = 0x3a6faf3ceac24f13804e68ed1563420b, "Connections are translated again",
        "The fault of the links or the canary is gone.",
        "Nothing.";
    LINKS_REPAIRED = 0x5e33a99b6f0647018c89ab60d9db7250, "BPF programs were attached again",
        "Another program had detached or replaced nodelb's programs, and nodelb attached its own again; connections \
         in between may have failed. If only pins were removed, or were hidden by another mount, the programs stayed \
         attached and no connection was affected. The line says which case applies.",
        "Find out what detached the programs or removed the pins: another agent on this node, an old nodelb, or an \
         administrator.";
    MAPS_REPAIRED = 0xa065b9a74eb84c968a40504f47d39b85, "Another process changed nodelb's maps",
        "Map entries differed from what nodelb had written: another program or an administrator had changed, deleted \
         or added them. Connections in between may have reached the wrong backend. nodelb repairs the entries \
         immediately.",
        "Find out which process changed the maps. `nodelb diff` shows whether it continues.";
    MAPS_UNREADABLE = 0xa2c2697343564bfa8ddb08e629006654, "The maps could not be checked",
        "nodelb could not read the kernel's maps, so it does not detect changes by other processes. It retries.",
        "If this continues, look at the error in the line.";
    SOCKETS_NOT_CLOSED = 0x82a53418899b4a97ac8e8ea793d1c4ac, "Stale sockets cannot be closed",
        "Sockets stay connected to backends that no longer exist until their programs close them: something that \
         nodelb needs to close them is missing or has stopped. nodelb connects again to a reaper that systemd \
         starts.",
        "See PRIVILEGE in nodelb(8). Check nodelb-reaper.socket; if nodelb itself started the reaper, restart \
         nodelb. `datapath.disconnect` selects the sockets to close.";
    SOCKET_CLOSING_RESUMED = 0x53e0b1e0ea9448f394457787ca3c54f6, "Stale sockets are being closed again",
        "A reaper works again after the previous one had stopped or did not respond. nodelb closes the stale sockets \
         that have accumulated.",
        "Nothing.";
    SOCKETS_UNREADABLE = 0x60de6a22f3f745048b600829379241c2, "A check for stale sockets failed",
        "nodelb could not find or close stale sockets. It retries, and counts further failures in \
         nodelb_socket_errors_total.",
        "If this continues, look at the error in the line.";
    SOCKETS_CLOSED = 0x0d0b11f3b0f44fe787916d92b13e0a1f, "Stale sockets were closed",
        "Their backend no longer exists, or they were connected to an address before a service had it. The programs \
         that own them receive an error and connect again.",
        "Nothing.";
    APPLIED = 0xf03f205950904c7980af682f03e7ab8b, "Changes were applied",
        "nodelb wrote the changes of the named services to the kernel's maps. After the start, the line says which of \
         them are new, changed or removed, and which backends each has gained (+) or lost (-).",
        "Nothing.";
    FRONTEND_REFUSED = 0x0669d27fc02b4644a3b9f27fb56827de, "A frontend is not served",
        "nodelb refuses to serve the address, or the kernel did not accept it; the line gives the reason. \
         Connections to it are not translated.",
        "Follow the advice in the line. `nodelb frontends` shows the status.";
    FRONTEND_SERVED = 0x2422e94e1ab84db5941f09f78f400199, "A frontend is served again",
        "The reason for which it was not served is gone.",
        "Nothing.";
    NODE_ADDRESS_REFUSED = 0x6b0d3f4d7a8e4c6fb1f0a3c58e2d9714, "NodePorts are not answered on an address of the node",
        "The kernel did not accept the address; the line gives the reason. Connections to a NodePort at this address \
         are not translated. nodelb retries.",
        "Follow the advice in the line. `nodelb diff` shows every such address.";
    NODE_ADDRESS_SERVED = 0x2f5ac1e08d7b49b39a64e7d2105c8fb6, "NodePorts are answered on an address of the node again",
        "The kernel accepts the address now.",
        "Nothing.";
    UPLINK_REFUSED = 0xe7991358feed480ba798bcf6878aabc9, "A device is not used for clients outside the node",
        "The kernel did not accept the device; the line gives the reason. Backends that are reached by it count as \
         backends on this node, so connections of clients outside the node to them fail. nodelb retries.",
        "Follow the advice in the line.";
    UPLINK_SERVED = 0x4d6f7fc7801d4a43a3cac90d5fb97443, "A device is used for clients outside the node again",
        "The kernel accepts the device now.",
        "Nothing.";
    NOT_FORWARDING = 0x8f1c6f0f3d6b4b5f9b5ed1c4a7e2d903, "The kernel does not forward packets of clients outside the node",
        "The line names the setting and the services. Packets of clients outside the node reach only backends with an \
         address of this node; those to other machines and to pods are lost.",
        "Set net.ipv4.ip_forward, or net.ipv6.conf.all.forwarding, to 1.";
    FORWARD_DROPS = 0x5d0f2a7c91e34b6a8c47d2b9e6f01384, "A firewall drops forwarded packets that no rule accepts",
        "The line names the chain and the services. Packets of clients outside the node to their backends in pods and \
         networks behind this node pass the chain. nodelb does not read its rules: the notice ForwardPolicy ends with the \
         first client that gets an answer.",
        "Accept packets to the backends in the chain, unless its rules already do.";
    GATEWAY_WITHOUT_PROGRAMS = 0x7be1c20d5a3f4986b0c4d87e16f39a52, "A device leads to backends through a router and has no programs",
        "The routes of this node to the backends of the services in the line leave by the device and through a router. nodelb \
         takes it for a device of a pod or network behind this node, or `packets.devices` lacks it, so that the answers of the \
         backends are not translated.",
        "Add the device to packets.devices.";
    REVERSE_PATH_STRICT = 0x3b9c64e1f7a84d0295ae18d3c60b7f52, "Packets of clients outside the node are checked by the way back",
        "`rp_filter` is 1 on the devices that the line names, and the node has several ways out. Packets of a client that \
         arrive there are dropped unless the route to the client leads back by the same device.",
        "Nothing, if clients arrive where their routes lead. Otherwise set net.ipv4.conf.DEVICE.rp_filter, and that of \
         `all`, to 2 or 0.";
    FRONTEND_CONFLICT = 0xb31ae02960a8459b907b810a3bfda291, "Two services claim one address",
        "The owner is a service of a file, or else the older Service. The other waits until the owner gives the address up.",
        "Remove the address from one of the two services.";
    FRONTEND_TAKEN_OVER = 0xb78dae9e5397429681fd43c9a026a4cc, "A frontend has a new owner",
        "The service that owned the address gave it up. The service that claimed it too owns it now.",
        "Nothing.";
    PRUNED = 0x5c0053852e8b45c0a976c7634772c255, "Unused frontends were removed",
        "These frontends were in the kernel's maps before the start. Every source has reported its state, and no \
         source describes them.",
        "Nothing, if their services were deleted while nodelb was not running.";
    BACKENDS_LOST = 0x316bbf1a8d494d68be229b57a524264a, "A service has lost its last backend",
        "New connections to @SERVICE@ are refused. @OBJECT@ removed the last backend: resourceVersion \
         @RESOURCE_VERSION@, written by @WRITER@.",
        "`nodelb diagnose @SERVICE@` finds the cause. `nodelb backends --service @SERVICE@` shows why no backend can \
         be used.";
    SERVICE_HELD = 0xe11d795c34c34405b5ef6500daff7ec7, "A service is held",
        "The last known backends of @SERVICE@ stay in use. Either @OBJECT@ (resourceVersion @RESOURCE_VERSION@, written \
         by @WRITER@) removed the last backend of a service that leads to an API server, or DNS servers give no current \
         answer for its backends; the line says which.",
        "Find out why the backends were removed, or why the DNS servers fail (`nodelb dns`). The hold ends when the \
         source has backends again or the service is deleted.";
    SERVICE_RELEASED = 0x2f1f839678514c91a190d98ad5ba7045, "A service is no longer held",
        "It has backends again, was deleted, or its source has none for it: the line says which.",
        "Nothing, if it has backends.";
    DNS_FAILING = 0x1cf00011b97b491f91e5b3ce3352fe66, "DNS servers fail, or answer again",
        "The names of backends cannot be resolved, and the last known addresses stay in use; or they are resolved again.",
        "If they fail, see `nodelb dns`: it shows what the servers answer for each name.";
    NODEPORT_BOUND = 0xe23df873b9ab43a194686d03ff283fb4, "A process has bound a NodePort",
        "Connections to the NodePort from outside the node reach this process instead of the service, unless nodelb \
         translates them (packets.mode); the line names it. Connections from this node reach the service.",
        "Move the process or the service to another port.";
    NODEPORT_FREE = 0xd6f5522ac4e24cde8a860792299bbd9b, "A NodePort is free again",
        "The process that had bound it has closed its socket.",
        "Nothing.";
    NODEPORTS_UNKNOWN = 0xbe57172e8a5348f29edade9134511d94, "Processes with bound NodePorts are unknown",
        "The kernel did not return the list of listening sockets, so nodelb does not know which processes have bound \
         NodePorts. It retries.",
        "If this continues, look at the error in the line.";
    BACKEND_QUARANTINED = 0xeacc60d279d44ef087a324c2d592cecc, "A backend failed its health check",
        "The backend gets no new connections until it passes its checks, unless the service has no other backend and \
         allows a last resort.",
        "Check the backend. The last error is in the line and in `nodelb backends`.";
    BACKEND_PASSES = 0x20254a7b2c6644f4a056c9127e213edd, "A backend passes its health check again",
        "The backend receives connections again.",
        "Nothing.";
    BACKEND_DRAINED = 0x186f31254899404d88d5a7364ae80484, "A drain of a backend began or ended",
        "The operator named in the line ran `nodelb drain` or `nodelb undrain`, or the time of a drain is over.",
        "Nothing. `nodelb status` shows drains.";
    CHECKS_IMPOSSIBLE = 0xf9b6baea5bbb4620b4eb588770e2acd9, "Health checks cannot run",
        "This host cannot open connections, for example because files or memory have run out. Backends keep their \
         state until health checks can run.",
        "Look at the error in the line; see LimitNOFILE= in systemd.exec(5).";
    CHECKS_POSSIBLE = 0xdf9263f809dc4be3989fbbfdb43d6874, "Health checks run again",
        "This host can open connections again.",
        "Nothing.";
    HEALTH_CHECK_PORT_FAILED = 0xe7214baa19574b279a716452e90ff1c8, "Load balancers get no answer",
        "nodelb cannot listen on a port that load balancers probe to check this node or a service. They treat the \
         node as down. nodelb retries, unless the line says otherwise.",
        "Free the port. `nodelb services` and /readyz show it.";
    HEALTH_CHECK_PORT_WORKS = 0xb1920ba3b7724d36a2fffe0fa4d94753, "Load balancers get answers again",
        "nodelb listens on the port again.",
        "Nothing.";
    ACCEPT_FAILED = 0x3900cb7d3cb9434ab36ecdd49dc7207c, "A connection could not be accepted",
        "A client of the admin API or a load balancer got no answer, usually because the process has too many open \
         files. nodelb retries.",
        "If this continues, see LimitNOFILE= in systemd.exec(5).";
    NODE_BEING_REMOVED = 0x3ad8df1cab984debac722de7a63a6c2b, "The node is being removed",
        "According to Kubernetes, this node does not exist, is being deleted, or is to be removed. The health \
         endpoint asks load balancers to stop sending traffic here. Services keep working.",
        "Nothing, if that is correct. If the node has another name in Kubernetes, set `node.name`.";
    NODE_NOT_REMOVED = 0x9f0a861d74464438b12011ca385a4e05, "The node is no longer being removed",
        "Kubernetes no longer reports that this node is being removed. The health endpoint reports the node as \
         eligible again.",
        "Nothing.";
    NODE_ADDRESSES = 0xe63001014b2f4530b175041ab7581720, "The node's addresses",
        "The addresses of the node, a change of them, or that the kernel reports them again.",
        "Nothing. `node.nodeport-addresses` selects the addresses on which NodePorts are answered.";
    DEVICE_ATTACHED = 0x565e5f05a92c4153b52b23cd9901c479, "Programs are attached to a network device",
        "nodelb attached its programs for packets to a network device. Connections from outside the node that pass the \
         device are translated from now on.",
        "Nothing. `nodelb devices` shows all devices.";
    DEVICE_DETACHED = 0x7c3762a6ef3b4f6c89e7578fdeea4fe7, "Programs are detached from a network device",
        "The device is gone, no longer leads to other machines, or is excluded by the configuration.",
        "Nothing, if the change was intended. `nodelb devices` shows the reason for each device.";
    DEVICE_NOT_ATTACHED = 0xe1a481527dd0493eaef4ddb51a711466, "Programs cannot be attached to a network device",
        "The kernel refused to attach or to detach nodelb's programs at a network device. Connections from outside the \
         node that arrive there, or the answers of backends that leave there, are not translated.",
        "Look at the error in the line. If the device should not be used, name it in `packets.except`.";
    PROGRAM_IN_FRONT = 0x4b8d0c62f3a94e17a5d29e60b7c1f384, "Another program ran before nodelb's at a network device",
        "A program of other software was attached in front of nodelb's. The kernel runs nodelb's program only for packets that \
         the other one passes on. nodelb moves its program to the front once for each program, and reports a program that \
         is in front afterwards.",
        "If connections from outside the node fail, let the other software attach its program behind nodelb's. `nodelb devices` \
         shows the devices.";
    PACKETS_ACTIVITY = 0xa865705f23464c6294d9ea1595e03f25, "Whether connections from outside the node are translated",
        "The line says whether nodelb translates connections from outside the node, and the reason.",
        "Nothing, if this is intended. `nodelb devices` shows the same.";
    PACKETS_FAILED = 0x4477fd29066a41c29b804d4a8956004a,
        "Connections from outside the node: the start was not complete",
        "nodelb could not load, replace or remove its programs for packets. Other connections are not affected.",
        "Look at the error in the line, and restart nodelb when it is corrected. `nodelb devices` shows the result.";
    CONNECTIONS_LIMIT_KEPT = 0xe23d6e90d8b04ea2ac30404c6e8351a3, "The limit of connections was not lowered",
        "More connections exist than packets.max-connections permits. The map keeps its size, and no connection ends.",
        "Restart nodelb when fewer connections exist, or raise packets.max-connections.";
    SNAT_PORTS_OVERLAP = 0xf64be8eedb724bc1a3de84b961fb31f9,
        "The source ports overlap with those of the node's processes",
        "packets.snat-ports contains ports that the kernel assigns to processes of the node. nodelb takes none that a \
         process has, so it has fewer for connections to backends on other nodes, and searches longer for a free one.",
        "Set packets.snat-ports, or net.ipv4.ip_local_port_range, to a range that does not overlap with the other one.";
    PACKET_EVENTS_FAILED = 0x7f0c3b9a52e14d6f8a4be1c0d7935a26, "Packets can no longer be watched",
        "nodelb could not read the events of its packet programs. `nodelb watch --packets` ends. Connections are not \
         affected.",
        "Start `nodelb watch --packets` again. If it ends again, look at the error in the line.";
    SWEEP_FAILED = 0xfa15765d7e794bb58f0d008e4c4fb015, "Connections that have ended cannot be deleted",
        "The kernel does not list the connections of clients outside the node, or does not delete those that have \
         ended. They occupy room in the map. When it is full, new connections continue to work, but are evicted when \
         many others begin.",
        "Look at the error in the line. A restart of nodelb loads the programs again.";
    SERVICE_UNANSWERED = 0xdb124317381f4c0d8c72f15ac8efa89c, "Clients outside the node get no answer or are refused",
        "Backends have not accepted the last connections of clients outside the node to the service, three or more. The node \
         translates and forwards their packets, and nothing comes back, or RST; the line says which.",
        "`nodelb diagnose` with the service names the likely causes: a firewall between the node and the backend or on the \
         backend's host, a route, a program that does not run, or with direct return a missing address or tunnel on the backend.";
    SERVICE_ANSWERED = 0xeb4066dd3bc2447591da88493544bbea, "Clients outside the node get answers again",
        "The backends of the service answer again, or no client outside the node has tried for five minutes.",
        "None.";
    CONNECTIONS_FULL = 0x3e1322fbb07d45a29f8ce44c0fb1bf76, "The room for connections is nearly used",
        "Above 80 % of packets.max-connections, TCP connections without packets are forgotten earlier than \
         packets.tcp-timeout says. When the map is full, new connections are evicted when many others begin.",
        "Raise packets.max-connections and restart nodelb; connections continue.";
    HANDSHAKES_FULL = 0x41c0b2fd8b1d4bd6b7a1e95be4c2a7d0, "The room for handshakes is nearly used",
        "Above 80 % of packets.max-handshakes, the least recently used may soon be evicted. A handshake then begins again. A \
         connection with direct return continues, unless the backends have changed since it began.",
        "Raise packets.max-handshakes and restart nodelb, unless it is a flood: `nodelb connections` shows the clients.";
    FOREIGN_PORTS_UNKNOWN = 0x2826667352ff4983ae18b99afb8cbd74, "Ports of other proxies are unknown",
        "nodelb cannot list the connections that other proxies and network plugins have made from packets.snat-ports, or \
         there are more than it has room for. It may take a port that such a connection to the same backend uses, and the \
         backend may reset that connection.",
        "Look at the error in the line. Connections that nodelb translates are not affected.";
    POLICIES_UNREAD = 0xc70a5a859d804a1cbf63e6d939ffdfba, "The policies of IPsec cannot be read",
        "nodelb cannot list the policies of the kernel (`ip xfrm policy`). Connections of clients outside the node follow those \
         that were last read; at a start there are none, and packets that a policy protects may be sent in clear text.",
        "Look at the error in the line: listing them requires CAP_NET_ADMIN, which the reaper has.";
    POLICIES_CHANGED = 0x1626d16ac4cb49f19dc0bb45f427dafb, "The policies of IPsec have changed",
        "Policies of the kernel (`ip xfrm policy`) protect other packets than before. nodelb cannot encrypt, so connections of \
         clients outside the node that a policy covers are refused, and those that exist have ended.",
        "None, if these clients are not to connect. Otherwise, exclude the addresses of the node and of the backends from \
         the policies, or let clients connect from the node itself.";
    NODE_UNKNOWN = 0x260f0f13df7c4023b7a591f54d086943, "The node's addresses are unknown",
        "The kernel does not report the addresses of the node. nodelb uses the last known ones and retries.",
        "If this continues, look at the error in the line.";
    NODE_NAMED = 0x5d0c6d1f8a3b4e0f9c27b1e4a6d85312, "The node's name",
        "The node has a new name: a reload set it, or the host name was set after nodelb had started. Or only the \
         host name has changed, which has no effect: the kubelet keeps the name from its start, too.",
        "If the line says that nodelb keeps the old name and `kubectl get nodes` shows the new one, run `systemctl \
         reload nodelb` or set `node.name`.";
    DIRECTORY_UNREADABLE = 0x033109c6a9c245c28614f795e231bfac, "The services directory cannot be read",
        "nodelb keeps serving what it read before, and retries.",
        "Check @DIRECTORY@ and its permissions: `files.directory`.";
    DIRECTORY_POLLED = 0x953a68fbe13947a4a31469fce89124a9, "The services directory is polled",
        "The kernel does not report file changes, so nodelb notices them later.",
        "Raise fs.inotify.max_user_instances.";
    SOURCE_ABSENT = 0xc961d74c91024b21a42764b5974db334, "A previously used source is not configured",
        "The BPF maps or the state directory contain services of a source that the configuration does not name. The \
         configuration file may be empty, or may have been replaced. A start does not remove these services: they \
         stay as last known and are not updated. `/readyz` and `nodelb status` report this while it lasts.",
        "Configure the source again and restart nodelb. To remove its services, set `kubernetes.enabled` to false \
         and restart nodelb, or run `nodelb cleanup`.";
    FILE_PROBLEM = 0xf73844ed0ca448e08c8a5b07e433f99b, "A service file has a problem",
        "The line names the file and the position. nodelb keeps serving the last valid version, if there was one.",
        "Correct the file. `nodelb check-config` shows all problems.";
    FILE_SERVED = 0xd07c9c39a09b47a4921c535b9bdef62e, "A service file is valid again",
        "nodelb serves the current version of the file, or can read the services directory again.",
        "Nothing.";
    WATCH_FAILED = 0x4c2b83149c7f4dd09652f096a5061142, "A watch fails",
        "Requests for a kind of objects fail repeatedly, although the API server is connected. nodelb keeps serving \
         the last known state.",
        "Look at the error in the line and at `nodelb sources`.";
    WATCH_FORBIDDEN = 0x0f1311c57f584179b0eb9bb07de7ef9d, "A permission is missing",
        "nodelb has no permission to read a kind of objects. It keeps serving the last known state.",
        "Grant get, list and watch. Verify with kubectl auth can-i, as shown in the line.";
    WATCH_WORKS = 0x261e09f1db2a4997a44f7f52b802d895, "A watch works again",
        "nodelb receives changes of this kind of objects again.",
        "Nothing.";
    EVENTS_UNWRITTEN = 0x033735006e1841608213f803647cd17f, "Kubernetes Events are not written",
        "An API server rejects the Events about services that `kubernetes.events` enables. Services keep working, \
         and this journal contains the same information.",
        "Grant the permission that the line names, or set `kubernetes.events` to false.";
    ADMIN_SOCKET_MISSING = 0x8222611f8923488c893d861056105485, "The admin API has no unix socket",
        "nodelb could not create the unix socket of `admin.socket`. The admin API is available on `admin.listen` only.",
        "Look at the error in the line. The directory must exist and nodelb must have permission to write to it.";
    OBJECT_TOO_LONG = 0xca0e5cec18ae4317a18521cfa11c41d1, "An object is too large",
        "An API server sent a Service or EndpointSlice of more than 8 MiB, which nodelb does not read. The last known \
         version of the object is still served, and the watch continues.",
        "Find the object, for example `kubectl get services,endpointslices -A -o json`, and look for large annotations.";
    MASS_REMOVAL_SUSPECTED = 0xb4b9f601008243f6913b715b0ac73306, "A list lacks many known objects",
        "An API server returned far fewer objects than nodelb knows. nodelb removes nothing until a second list \
         confirms the removal.",
        "Nothing, if the objects were deleted. Otherwise look for an API server with incomplete storage.";
    SELECTION_HELD = 0x5ac1f3c3900d4dd5b5d80f99954905d0, "A selection leaves out most services",
        "`kubernetes.namespaces`, `kubernetes.services` or `kubernetes.label-selector` was changed, and leaves out more \
         than half of the services that this node knew. nodelb keeps these as last known until that is accepted.",
        "Correct the key and restart nodelb, or run `nodelb accept`.";
    SELECTION_APPLIED = 0x44c8efb9f7cb48aa988cf5bf5ef9e0aa, "A selection takes effect",
        "The services that the changed selection leaves out are removed, or none is left out any more.",
        "Nothing.";
    CLUSTER_CHANGED = 0xcf40c3c961b745cb9e8f1dcaf5d68bae, "The cluster was replaced or restored",
        "The Service default/kubernetes or the certificate authority differs from before, or the cluster's \
         resourceVersion has decreased. nodelb discards what it had stored about the previous cluster and lists all \
         objects again.",
        "Nothing, if the cluster was recreated or restored. Otherwise check that every configured address leads to \
         the same cluster.";
    STATE_UNREADABLE = 0xbd12b44df6a94f5294769183bba2cb66, "Stored state is not used",
        "A file of the state directory cannot be read or is invalid. nodelb collects its content again.",
        "Look at the error in the line. You may delete the files while the daemon is stopped.";
    STATE_LOADED = 0x2f697a324fd141f3834c3c99c89453f9, "Stored state is in use",
        "nodelb has read it from the state directory, and uses it until an API server or a health check reports \
         newer information.",
        "Nothing.";
    STATE_UNWRITTEN = 0x27492459687944a1919fb6b126bd2a5b, "State cannot be stored",
        "nodelb cannot write to the state directory. It keeps working, but does not have this state after a restart \
         or reboot.",
        "Look at the error in the line, and at space and permissions in `state.directory`.";
    STATE_WRITTEN = 0x6cee108e710f4bb3b52c11684c5c8bde, "State is stored again",
        "nodelb can write to the state directory again.",
        "Nothing.";
    APISERVER_FAILED = 0x55d7b82b4bb64fdf9f50c20451745789, "An API server fails",
        "It does not respond, or not correctly. nodelb uses another one if any works. Repetitions of the same error \
         are not logged.",
        "`nodelb apiservers` shows the state of each address with the reason.";
    APISERVER_IN_USE = 0x2bb08156d5e440c4955795d0451c2d14, "nodelb uses an API server",
        "nodelb receives changes over this address from now on. The line gives the reason for the choice.",
        "Nothing.";
    APISERVER_NONE = 0x0e08e0b21f3f432abdfe90f952398ac4, "No API server is reachable",
        "nodelb serves the last known state, and connections keep working. It retries every known address.",
        "`nodelb apiservers` shows why each address fails. Until one works, nodelb receives no changes of services.";
    APISERVER_KNOWN = 0x01fd9e1510814a5db246c3e480f62a6b, "An API server address was added or removed",
        "An address was added because the kubeconfig names it or because it is no longer a service address; or it \
         was removed because it failed for a long time and the endpoints do not list it.",
        "Nothing.";
    APISERVER_EXCLUDED = 0xf3fb27fba55e41e283492a9164bdc9ac, "An address is not used as an API server",
        "The endpoints list it as an API server, but it is a service address, or another address that nodelb must \
         not connect to because the connection would go through its own translation.",
        "Configure a direct address of an API server: `kubernetes.apiserver`.";
    LOGIN_FAILED = 0x2ae4a9eba539499b9ddd145784c0a691, "The credentials cannot be used",
        "The kubeconfig, a token, a certificate or a plugin has a problem. nodelb continues to use earlier \
         credentials, if there are any.",
        "Look at the error in the line. nodelb reads the files again when they change.";
    LOGIN_CHANGED = 0x0d35430f50194070931b775aa87aea73, "New credentials are in use",
        "The files have changed, and nodelb uses their current content.",
        "Nothing.";
    LINES_DROPPED = 0x650d80bb1d4d4064aba0928af5361418, "Log lines were dropped",
        "journald, or the process that reads the daemon's stderr, did not accept lines for a while. The daemon does \
         not wait: it drops the lines that exceed its queue and counts them in nodelb_log_lines_dropped_total.",
        "Find out why journald was blocked, for example by its disk or the host's memory. `nodelb history` shows \
         what nodelb did in between.";
    LISTENER_FAILED = 0x749551a7dcb646bfa8ea2502fc65acc6, "The admin API does not listen on an address",
        "nodelb cannot open an address of `admin.listen`; the line gives the reason. It keeps serving, and retries \
         every few seconds. /readyz shows the failure on the other addresses and on the unix socket.",
        "Follow the advice in the line: free the port, or remove the address from `admin.listen` and restart nodelb.";
    LISTENER_WORKS = 0x889ce0db486d4ce8b05e0942e3994977, "The admin API listens on an address again",
        "nodelb has opened an address of `admin.listen` that it could not open before, or `admin.socket`, which it could not \
         open or whose file was removed.",
        "Nothing.";
}

/// Every field that lines have in addition to their text, with its meaning. The journal shows the names in capitals.
pub static FIELDS: &[(&str, &str)] = &[
    ("message_id", "The id of the message, as listed below"),
    ("service", "The service, as NAMESPACE/NAME"),
    ("port", "The name of the service's port; empty for an unnamed port"),
    ("frontend", "The address that clients connect to, as ADDRESS:PORT/PROTOCOL"),
    ("backend", "The address of the backend"),
    ("owner", "The service that owns the address"),
    ("object", "The object or file that caused the change"),
    ("resource_version", "The resourceVersion of the object"),
    ("writer", "The last writer of the object, if known"),
    ("apiserver", "The address of an API server"),
    ("directory", "The services directory"),
    ("file", "A service file"),
    ("line", "The line in the file"),
    ("error", "The error"),
    ("operations", "The number of completed map operations"),
    ("entries", "The number of repaired map entries"),
    ("failed", "The number of failed operations or entries"),
    ("services", "The number of services that are served"),
    ("sockets", "The number of closed sockets"),
    ("more", "The number of similar lines that were not logged"),
    ("lines", "The number of dropped log lines"),
    ("version", "The version of nodelb"),
    ("node", "The name of this node"),
    ("generation", "The generation of the maps"),
    ("cgroup", "The cgroup that the programs are attached to"),
];
