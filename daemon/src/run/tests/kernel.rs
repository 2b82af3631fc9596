#[path = "kernel/document.rs"]
mod document;

use super::*;

#[test]
fn clients_are_counted_again_only_after_a_while() {
    let (mut counted, start) = (Counted::default(), Instant::now());
    assert_eq!(counted.number(start, || Some(3)), Some(3));
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY / 2, || panic!("too early")), Some(3));
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY, || None), None);
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY, || panic!("too early")), None);
    assert_eq!(counted.number(start + COUNT_CLIENTS_EVERY * 2, || Some(4)), Some(4));
}

/// The text after `attached, with` contains the reason why maps were replaced.
#[test]
fn maps_that_were_replaced_for_their_content_are_not_said_to_have_had_other_sizes() {
    let from = Limits { frontends: 1, services: 1, slots: 1, affinity: 1, outside: 0, source_ranges: 0 };
    assert!(text_of(Origin::Rebuilt { from }).contains("maps of new sizes"));
    let cleaned = text_of(Origin::Cleaned);
    assert!(
        !cleaned.contains("other sizes") && cleaned.contains("entries that nodelb cannot have written"),
        "{cleaned}"
    );
}

fn code_of(error: OpenError) -> Code {
    refused(error).code
}

#[test]
fn what_may_pass_by_itself_ends_with_a_code_that_is_tried_again() {
    let (reason, object, directory) = (String::new, PathBuf::new, PathBuf::new);
    let refused_by_kernel = |may_pass| OpenError::Refused { reason: reason(), log: String::new(), may_pass };
    let failed = OpenError::Failed { action: "mapping", object: object(), reason: reason() };
    let no_map = OpenError::NoMap { map: "slots".into(), reason: reason() };
    for passes in [refused_by_kernel(true), no_map, failed] {
        assert_eq!(code_of(passes), Code::System);
    }
    assert_eq!(code_of(OpenError::Busy { directory: directory() }), Code::Unavailable);
    let lasting = [
        OpenError::NotPermitted { missing: Vec::new() },
        OpenError::Forbidden { reason: reason() },
        OpenError::NoBpffs { directory: directory() },
        OpenError::NotOwn { directory: directory(), owner: 1000, mode: 0o755 },
        OpenError::NoCgroup2,
        OpenError::BadCgroup { path: directory(), reason: reason() },
        OpenError::Lacks { what: reason() },
        OpenError::Exclusive { hook: "connect4", cgroup: directory(), is_here: true, program: 7, name: None },
        OpenError::NoJit { reason: reason() },
        OpenError::NoLookup { reason: reason() },
        refused_by_kernel(false),
    ];
    for error in lasting {
        assert_eq!(code_of(error), Code::Permission);
    }
    let configured = [
        OpenError::NewerLayout { found: 2, known: 1, directory: directory() },
        OpenError::UnknownLayout { found: 1, known: 2, directory: directory() },
        OpenError::TooSmall { map: "slots", limit: 1 },
        OpenError::WholeBpffs { directory: directory() },
    ];
    for error in configured {
        assert_eq!(code_of(error), Code::Config);
    }
}

#[test]
fn memory_that_is_short_when_capabilities_are_dropped_may_pass() {
    let code = |number| stuck_with_privileges(PrivilegeError::NoUse(io::Error::from_raw_os_error(number))).code;
    assert_eq!(code(nix::libc::ENOMEM), Code::System);
    assert_eq!(code(nix::libc::EPERM), Code::Permission);
    assert_eq!(stuck_with_privileges(PrivilegeError::Threads(2)).code, Code::Internal);
}
