//! The only list of messages in the journal. Each message has its own id (`MESSAGE_ID=`), by which it can be found
//! regardless of its text, and an explanation that `journalctl -x` shows. The systemd catalogue
//! (`contrib/systemd/nodelb.catalog`) and `docs/journal.md` are generated from this list. Messages with the same
//! meaning for an operator share one id, even if several lines of code log them. A test checks that every logged line
//! has an id.
//!
//! To add a message, add a row here with a new random id (`systemd-id128 new`), then run `UPDATE=1 cargo test -p nodelb
//! --lib log`.

use std::fmt;

/// The id of a message. It is permanent and never assigned to another message. Displayed in the format of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u128);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A message, independent of the text of a particular line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The name of the constant in the code.
    pub name: &'static str,
    /// The value of `MESSAGE_ID=`.
    pub id: MessageId,
    /// What has happened, in one line.
    pub subject: &'static str,
    /// The meaning. `@FIELD@` stands for a field of the line.
    pub explanation: &'static str,
    /// The action for the operator.
    pub remedy: &'static str,
}

/// Defines each id as a constant, and the table of all messages.
macro_rules! messages {
    ($($name:ident = $id:literal, $subject:literal, $explanation:literal, $remedy:literal;)*) => {
        $(#[doc = concat!($subject, ".")]
        pub const $name: MessageId = MessageId($id);)*

        /// Every message.
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
    STARTED = 0x5a34a6697d134ac2aff1692094d948bd,
        "nodelb starts",
        "The daemon begins. What an earlier one left in the kernel is taken over; connections went on meanwhile.",
        "Nothing. A start that nobody asked for has its reason in the lines before it.";
    STOPPED = 0x89a44ff651a64823a74548745980c1a6,
        "nodelb ends",
        "The daemon was told to end. Maps and programs stay in place: connections go on, new ones too, as last known.",
        "Nothing. `nodelb cleanup` takes everything away.";
    READY = 0x34af97399f3146468ccc5523db007003,
        "nodelb is ready",
        "Every source has told all it has, and the kernel has exactly that; or ten seconds have passed and \
         what was known before is served, so that what is ordered after nodelb can start.",
        "Nothing; if a source is not read soon, see `nodelb sources` and `nodelb apiservers`.";
    CONFIG_APPLIED = 0x29284ef410114e90b1367c4e7dc7a5af,
        "The configuration is reloaded",
        "The configuration was read again and is in force.",
        "Nothing.";
    CONFIG_REFUSED = 0x5f517a990c76439ab1ec198e1e8ccc63,
        "The configuration is refused",
        "It was read again and has problems. It is refused whole, and the old one stays in force.",
        "Correct what the line names, see `nodelb check-config`, then reload again. A restart with it would fail.";
    CONFIG_UNREAD = 0x4c688e2f0ad243929c2f9873e1496928,
        "The configuration cannot be read in time",
        "A reload was asked for, and the file system of the configuration does not answer. The old configuration stays in \
         force and everything goes on. The new one is taken over when it is read.",
        "See why the file system hangs; reload again if the daemon does not report that the configuration is reloaded.";
    CONFIG_NEEDS_RESTART = 0x711b561531e442c19499b5552c1f5423,
        "Part of the configuration waits for a restart",
        "The named keys were changed and take effect only after a restart.",
        "Restart nodelb when it suits: connections go on.";
    MEMORY_ONLY = 0x90cfb1807c56454daaea7fdfc0e1b313,
        "Connections are not translated",
        "The datapath is memory: nodelb does everything but translate connections.",
        "Good for trying things out. Else set `datapath.mode` to kernel, or leave `--datapath` away.";
    ATTACHED = 0xb9674b27d7e746f7b2d122f9f94a8ed5,
        "The programs are attached",
        "nodelb's programs are in the kernel, with new maps or with those of an earlier daemon. The daemon needs no \
         privilege any more and has given up what it had, but for what this kernel asks for.",
        "Nothing.";
    MAP_ENTRY_CORRUPT = 0xce5673c42b7b449ab5713563a46f6da7,
        "A map entry made no sense",
        "An entry of nodelb's maps cannot have been written by nodelb, and was left out when the maps were made anew.",
        "Find out which other program writes to the maps in /sys/fs/bpf/nodelb.";
    KERNEL_HAS = 0xa3d58bfcf2584b4aa251febc8ff0c5bd,
        "What the kernel offers",
        "What this kernel has of what nodelb uses where it is there, found by trying, and what follows from each thing \
         that is missing.",
        "Nothing.";
    KERNEL_LACKS = 0x117ebe702efb4f929c9f96eebe651c3e,
        "The kernel lacks something",
        "nodelb goes on without a feature that this kernel does not have; the line says what that means.",
        "If it matters here: a newer kernel, or one that is configured for it.";
    ATTACHED_TWICE = 0xb69e95a5079a4b6fa0373ef0a70cd693,
        "Programs of another pin directory are attached too",
        "Links pinned in another directory of a BPF file system are on the same cgroup: of a nodelb before datapath.pin-directory \
         was changed, or of one that runs beside this one. Connections may go where those maps say. /readyz and nodelb \
         status say so as long as it lasts.",
        "If no other nodelb is meant to run, nodelb cleanup --pin-directory with the directory that the line names.";
    NODEPORTS_UNPROTECTED = 0x36275fd0068b4ad08fe439d87431ccba,
        "NodePorts can be bound by others",
        "A process of this host may get the port of a NodePort; connections from outside would reach it and not the \
         service.",
        "Do as the line says: keep NodePorts out of the range of ephemeral ports, see net.ipv4.ip_local_port_range.";
    HOOKS_FAILED = 0xfcb1abe9aa24442c8cf2909162f0eb8b,
        "Connections are not translated as they should be",
        "The links or the canary show that nodelb's programs are not in effect for the processes of this node, or that \
         programs of another nodelb answer as well: connections to service addresses may fail, or go to backends that are \
         gone. /readyz says 503 as long as it lasts.",
        "The line says what is wrong, and names the command that ends it. Else look for other programs on the cgroup with \
         bpftool cgroup tree, and restart nodelb.";
    HOOKS_WORK = 0x3a6faf3ceac24f13804e68ed1563420b,
        "Connections are translated again",
        "What was wrong with the links or the canary is over.",
        "Nothing.";
    LINKS_REPAIRED = 0x5e33a99b6f0647018c89ab60d9db7250,
        "Programs are attached again",
        "Programs had been detached from the cgroup, or replaced, and nodelb attached its own again: connections made \
         meanwhile may have failed. Or only pins were removed, or hidden by another mount: then the programs were attached \
         all the time, and no connection was affected. The line says which.",
        "Find out what detached them or removed the pins: another agent on this node, an old nodelb, or an operator.";
    MAPS_REPAIRED = 0xa065b9a74eb84c968a40504f47d39b85,
        "Somebody else changed nodelb's maps",
        "Entries of the maps were not as nodelb had written them: changed, removed or added by another program or by hand. \
         Connections made meanwhile may have gone astray. nodelb puts it right at once.",
        "Find out who it was; `nodelb diff` shows whether it goes on.";
    MAPS_UNREADABLE = 0xa2c2697343564bfa8ddb08e629006654,
        "The maps cannot be compared with what they should hold",
        "The kernel's maps could not be read back, so what somebody else may have changed there is not seen. It is tried again.",
        "If it goes on, look at the error in the line.";
    SOCKETS_NOT_CLOSED = 0x82a53418899b4a97ac8e8ea793d1c4ac,
        "Sockets cannot be made to dial again",
        "Sockets stay connected to backends that are gone until they are closed: something that nodelb needs to end \
         them is missing, or has ended. A reaper that systemd starts is called again.",
        "See PRIVILEGE in nodelb(8). Look at nodelb-reaper.socket; if nodelb had started the reaper by itself, restart \
         nodelb. `datapath.disconnect` says whether it is wanted.";
    SOCKET_CLOSING_RESUMED = 0x53e0b1e0ea9448f394457787ca3c54f6,
        "Sockets can be made to dial again",
        "A reaper works after one had ended, or none had answered. Sockets that waited for it are ended now.",
        "Nothing.";
    SOCKETS_UNREADABLE = 0x60de6a22f3f745048b600829379241c2,
        "A look at the sockets failed",
        "Sockets that should dial again could not be found or ended. It is tried again; more of the same is only \
         counted, in nodelb_socket_errors_total.",
        "If it goes on, look at the error in the line.";
    SOCKETS_CLOSED = 0x0d0b11f3b0f44fe787916d92b13e0a1f,
        "Sockets were ended, to dial again",
        "Their backend is gone, or they dialled an address before it had one. The programs that own them see an error \
         and connect again.",
        "Nothing.";
    APPLIED = 0xf03f205950904c7980af682f03e7ab8b,
        "Changes are in the kernel",
        "What the named services needed was written to the kernel's maps.",
        "Nothing.";
    FRONTEND_REFUSED = 0x0669d27fc02b4644a3b9f27fb56827de,
        "A frontend cannot be served",
        "The address is refused or the kernel would not take it; the line says why. Connections to it are not \
         translated by nodelb.",
        "Do as the line says; `nodelb frontends` shows how it stands.";
    FRONTEND_SERVED = 0x2422e94e1ab84db5941f09f78f400199,
        "A frontend is served again",
        "What kept it from being served is over.",
        "Nothing.";
    NODE_ADDRESS_REFUSED = 0x6b0d3f4d7a8e4c6fb1f0a3c58e2d9714,
        "NodePorts are not answered on an address of the node",
        "The kernel did not take the address; the line says why. Connections to a NodePort at this address are not \
         translated by nodelb. It tries again.",
        "Do as the line says; `nodelb diff` shows every such address.";
    NODE_ADDRESS_SERVED = 0x2f5ac1e08d7b49b39a64e7d2105c8fb6,
        "NodePorts are answered on an address of the node again",
        "What kept the kernel from taking the address is over.",
        "Nothing.";
    FRONTEND_CONFLICT = 0xb31ae02960a8459b907b810a3bfda291,
        "Two services claim one address",
        "The older service owns the address; the other waits and takes over when that goes.",
        "Remove the address from one of the two services.";
    FRONTEND_TAKEN_OVER = 0xb78dae9e5397429681fd43c9a026a4cc,
        "A frontend has another owner",
        "The service that owned the address is gone, and the one that waited for it has taken over.",
        "Nothing.";
    PRUNED = 0x5c0053852e8b45c0a976c7634772c255,
        "Frontends are removed that no source asks for",
        "They were in the kernel since before the start. Every source has told all it has by now, and none names \
         them.",
        "Nothing, if their services were deleted meanwhile.";
    BACKENDS_LOST = 0x316bbf1a8d494d68be229b57a524264a,
        "A service has lost its last backend",
        "New connections to @SERVICE@ are refused. @OBJECT@ took the last backend away: resourceVersion \
         @RESOURCE_VERSION@, written by @WRITER@.",
        "`nodelb diagnose @SERVICE@` looks for the cause; `nodelb backends --service @SERVICE@` says why none can be used.";
    SERVICE_HELD = 0xe11d795c34c34405b5ef6500daff7ec7,
        "A service is held",
        "@OBJECT@ (resourceVersion @RESOURCE_VERSION@, written by @WRITER@) took the last backend of @SERVICE@ away. \
         Because it leads to an apiserver, the last known backends stay in use.",
        "See who emptied it. It ends when there are backends again, or the service is deleted.";
    SERVICE_RELEASED = 0x2f1f839678514c91a190d98ad5ba7045,
        "A service is not held any more",
        "It has backends again, or was deleted.",
        "Nothing.";
    NODEPORT_BOUND = 0xe23df873b9ab43a194686d03ff283fb4,
        "A process has bound a NodePort",
        "What comes to it from outside the node reaches that process and not the service; the line names it. \
         Connections from this node go to the service.",
        "Move the process to another port, or the service.";
    NODEPORT_FREE = 0xd6f5522ac4e24cde8a860792299bbd9b,
        "A NodePort is free again",
        "The process that had bound it is gone.",
        "Nothing.";
    NODEPORTS_UNKNOWN = 0xbe57172e8a5348f29edade9134511d94,
        "It is not known who has bound NodePorts",
        "The kernel did not say which processes listen at NodePorts. It is asked again.",
        "If it goes on, look at the error in the line.";
    BACKEND_QUARANTINED = 0xeacc60d279d44ef087a324c2d592cecc,
        "A backend failed its health check",
        "It gets no new connections until it passes its checks, unless there is no other and the service says so.",
        "Look at the backend; the last error is in the line and in `nodelb backends`.";
    BACKEND_PASSES = 0x20254a7b2c6644f4a056c9127e213edd,
        "A backend passes its health check",
        "It is used again.",
        "Nothing.";
    CHECKS_IMPOSSIBLE = 0xf9b6baea5bbb4620b4eb588770e2acd9,
        "Health checks cannot be made",
        "This host lacks what it takes to connect, such as files or memory. Backends stay as they are until it can.",
        "Look at the error in the line; see LimitNOFILE= in systemd.exec(5).";
    CHECKS_POSSIBLE = 0xdf9263f809dc4be3989fbbfdb43d6874,
        "Health checks can be made again",
        "What kept this host from connecting is over.",
        "Nothing.";
    HEALTH_CHECK_PORT_FAILED = 0xe7214baa19574b279a716452e90ff1c8,
        "Load balancers are not answered",
        "A port where load balancers ask after this node or a service cannot be listened on. They take the node for \
         dead. It is tried again, unless the line says otherwise.",
        "Free the port; `nodelb services` and /readyz show it.";
    HEALTH_CHECK_PORT_WORKS = 0xb1920ba3b7724d36a2fffe0fa4d94753,
        "Load balancers are answered again",
        "The port is listened on.",
        "Nothing.";
    ACCEPT_FAILED = 0x3900cb7d3cb9434ab36ecdd49dc7207c,
        "A connection could not be accepted",
        "A client of the admin API or a load balancer was not answered, mostly for want of files. It is tried again.",
        "If it goes on: see LimitNOFILE= in systemd.exec(5).";
    NODE_BEING_REMOVED = 0x3ad8df1cab984debac722de7a63a6c2b,
        "The node is about to go",
        "Kubernetes says that this node is missing, being deleted, or to be removed. Load balancers are told to turn \
         away; services go on.",
        "Nothing if that is so. If the node has another name in Kubernetes, set `node.name`.";
    NODE_NOT_REMOVED = 0x9f0a861d74464438b12011ca385a4e05,
        "The node stays",
        "Kubernetes does not say any more that this node is about to go. Load balancers are told to come back.",
        "Nothing.";
    NODE_ADDRESSES = 0xe63001014b2f4530b175041ab7581720,
        "The node's addresses",
        "Which addresses the node has, what has changed about them, or that the kernel tells them again.",
        "Nothing. `node.nodeport-addresses` says on which of them NodePorts are answered.";
    NODE_UNKNOWN = 0x260f0f13df7c4023b7a591f54d086943,
        "The node's addresses cannot be followed",
        "The kernel does not say which addresses the node has. Those last known count, and it is tried again.",
        "If it goes on, look at the error in the line.";
    NODE_NAMED = 0x5d0c6d1f8a3b4e0f9c27b1e4a6d85312,
        "The node's name",
        "The node has another name than before: a reload set it, or the host name was set only after nodelb had started. Or \
         the host name has changed, which alone changes nothing: the kubelet goes on with the name of its start, too.",
        "Where the line says that nodelb goes on with the old name and `kubectl get nodes` shows the new one: \
         `systemctl reload nodelb`, or set `node.name`.";
    DIRECTORY_UNREADABLE = 0x033109c6a9c245c28614f795e231bfac,
        "The services directory cannot be read",
        "What was read before stays served, and it is tried again.",
        "Look at @DIRECTORY@ and its permissions: `files.directory`.";
    DIRECTORY_POLLED = 0x953a68fbe13947a4a31469fce89124a9,
        "The services directory is looked at now and then",
        "The kernel does not tell when files change, so that is noticed later.",
        "Raise fs.inotify.max_user_instances.";
    SOURCE_ABSENT = 0xc961d74c91024b21a42764b5974db334,
        "A source that was there before is not configured",
        "The configuration does not name a source of which the kernel or the state directory has services: the file may be \
         empty, or may have been replaced. A start takes no services away for that: they stay as last known, and are \
         not updated. `/readyz` and `nodelb status` say so for as long as it lasts.",
        "Configure the source again and restart nodelb. To remove its services, set `kubernetes.enabled` to false and \
         restart nodelb, or run `nodelb cleanup`.";
    FILE_PROBLEM = 0xf73844ed0ca448e08c8a5b07e433f99b,
        "A service file has a problem",
        "The file and the line are named. What it said before stays served, if there was anything.",
        "Correct it; `nodelb check-config` shows every problem at once.";
    FILE_SERVED = 0xd07c9c39a09b47a4921c535b9bdef62e,
        "A service file is in order again",
        "What it says is served; or the services directory can be read again.",
        "Nothing.";
    WATCH_FAILED = 0x4c2b83149c7f4dd09652f096a5061142,
        "Nothing new is heard of a kind of objects",
        "Requests to the apiserver fail again and again, though it is connected. What is known stays served.",
        "Look at the error in the line and at `nodelb sources`.";
    WATCH_FORBIDDEN = 0x0f1311c57f584179b0eb9bb07de7ef9d,
        "A permission is missing",
        "nodelb may not read a kind of objects. What is known stays served.",
        "Grant get, list and watch; kubectl auth can-i, as in the line, shows whether it helped.";
    WATCH_WORKS = 0x261e09f1db2a4997a44f7f52b802d895,
        "A kind of objects is watched again",
        "Changes are heard of as they happen.",
        "Nothing.";
    EVENTS_UNWRITTEN = 0x033735006e1841608213f803647cd17f,
        "Kubernetes Events are not written",
        "An apiserver does not take the Events about services that `kubernetes.events` asks for. Services are served all the \
         same; what the Events would have said is in this journal.",
        "Allow it, as the line says, or set `kubernetes.events` to false.";
    ADMIN_SOCKET_MISSING = 0x8222611f8923488c893d861056105485,
        "The admin API has no socket",
        "The unix socket of `admin.socket` could not be made. The admin API answers on `admin.listen` only.",
        "Look at the error in the line; the directory must exist and be nodelb's to write.";
    OBJECT_TOO_LONG = 0xca0e5cec18ae4317a18521cfa11c41d1,
        "An object is too large",
        "An apiserver sent a Service or EndpointSlice of more than 8 MiB, which nodelb does not read. The last known \
         version of the object stays served, and the watch continues.",
        "Find the object, for example `kubectl get services,endpointslices -A -o json`, and look for large annotations.";
    MASS_REMOVAL_SUSPECTED = 0xb4b9f601008243f6913b715b0ac73306,
        "A list lacks much of what is known",
        "An apiserver listed far fewer objects than are known. Nothing is removed before a second list agrees.",
        "Nothing, if so many were deleted. Else look for an apiserver whose storage is not complete.";
    CLUSTER_CHANGED = 0xcf40c3c961b745cb9e8f1dcaf5d68bae,
        "It is another cluster, or an older state of it",
        "The Service default/kubernetes or the certificate authority is another one than before, or the cluster's \
         resourceVersion went back. What was remembered of the old one does not count, and everything is listed \
         again.",
        "Nothing, if the cluster was made anew or restored. Else see that every configured address leads to the same \
         cluster.";
    STATE_UNREADABLE = 0xbd12b44df6a94f5294769183bba2cb66,
        "What was remembered is not used",
        "A file of the state directory cannot be read or makes no sense. What it would have said is learned anew.",
        "Look at the error in the line. The files may be deleted while the daemon is stopped.";
    STATE_LOADED = 0x2f697a324fd141f3834c3c99c89453f9,
        "What was known before counts",
        "It was read from the state directory, and counts until an apiserver or a check says otherwise.",
        "Nothing.";
    STATE_UNWRITTEN = 0x27492459687944a1919fb6b126bd2a5b,
        "What is known cannot be remembered",
        "The state directory cannot be written. Everything goes on, but after a restart or a reboot what is not there \
         would be missing.",
        "Look at the error in the line, and at space and permissions in `state.directory`.";
    STATE_WRITTEN = 0x6cee108e710f4bb3b52c11684c5c8bde,
        "What is known is remembered again",
        "The state directory can be written again.",
        "Nothing.";
    APISERVER_FAILED = 0x55d7b82b4bb64fdf9f50c20451745789,
        "An apiserver fails",
        "It does not answer, or not as it should. Another one is used, if any works; the same error is not repeated.",
        "`nodelb apiservers` shows how each address stands, and why.";
    APISERVER_IN_USE = 0x2bb08156d5e440c4955795d0451c2d14,
        "An apiserver is in use",
        "Services are heard of over this address from now on; the line says why this one.",
        "Nothing.";
    APISERVER_NONE = 0x0e08e0b21f3f432abdfe90f952398ac4,
        "No apiserver can be reached",
        "Services stay as they are and connections go on. Every known address is tried again and again.",
        "`nodelb apiservers` says why each one fails. Changes to services are not heard of meanwhile.";
    APISERVER_KNOWN = 0x01fd9e1510814a5db246c3e480f62a6b,
        "An apiserver address is new, or forgotten",
        "An address was added, because the kubeconfig names it or it is no address of services any more; or removed, \
         because it failed for long and is not listed.",
        "Nothing.";
    APISERVER_EXCLUDED = 0xf3fb27fba55e41e283492a9164bdc9ac,
        "An address is not used as an apiserver",
        "It is listed as one, but is an address of services, or otherwise none that nodelb should dial: that would \
         lead through its own translation.",
        "Configure a direct address of an apiserver: `kubernetes.apiserver`.";
    LOGIN_FAILED = 0x2ae4a9eba539499b9ddd145784c0a691,
        "The credentials cannot be used",
        "The kubeconfig, a token, a certificate or a plugin has a problem. If there are earlier credentials, they are \
         used on.",
        "Look at the error in the line; the files are read again when they change.";
    LOGIN_CHANGED = 0x0d35430f50194070931b775aa87aea73,
        "Other credentials are used",
        "The files were changed, and what they say now is used.",
        "Nothing.";
    LINES_DROPPED = 0x650d80bb1d4d4064aba0928af5361418,
        "Log lines were dropped",
        "journald, or the process that reads the daemon's stderr, did not take lines for a while. The daemon does not wait for \
         them: what did not fit into its queue was dropped and is counted in nodelb_log_lines_dropped_total.",
        "See why journald stood still: its disk, or the host's memory. What nodelb did meanwhile is in `nodelb history`.";
    LISTENER_FAILED = 0x749551a7dcb646bfa8ea2502fc65acc6,
        "The admin API does not listen at an address",
        "An address of `admin.listen` cannot be opened; the line says why. The daemon serves all the same, and tries it \
         again every few seconds. /readyz shows it on the addresses that are open and on the unix socket.",
        "Do as the line says: free the port, or remove the address from `admin.listen` and restart nodelb.";
    LISTENER_WORKS = 0x889ce0db486d4ce8b05e0942e3994977,
        "The admin API listens at an address again",
        "An address of `admin.listen` that could not be opened is open.",
        "Nothing.";
}

/// Every field that lines have in addition to their text, with its meaning. The journal shows the names in capitals.
pub static FIELDS: &[(&str, &str)] = &[
    ("message_id", "Which message it is, see the table"),
    ("service", "The service, as NAMESPACE/NAME"),
    ("port", "Name of its port, empty where it has none"),
    ("frontend", "The address that clients dial, as ADDRESS:PORT/PROTOCOL"),
    ("backend", "The address that they reach"),
    ("owner", "The service that owns the address instead"),
    ("object", "The object or file that the change came from"),
    ("resource_version", "Its resourceVersion"),
    ("writer", "Who wrote it last, as far as the object tells"),
    ("apiserver", "Address of an apiserver"),
    ("directory", "The services directory"),
    ("file", "A service file"),
    ("line", "Line in it"),
    ("error", "What went wrong"),
    ("operations", "How many map operations were done"),
    ("entries", "How many map entries were put right"),
    ("failed", "How many of them failed"),
    ("services", "How many services are served"),
    ("sockets", "How many sockets were ended"),
    ("more", "How many lines like this were left out"),
    ("lines", "How many log lines were dropped"),
    ("version", "Of nodelb"),
    ("node", "Name of this node"),
    ("generation", "Of the maps"),
    ("cgroup", "Where the programs are attached"),
];
