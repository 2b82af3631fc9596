//! The only code that converts between nodelb's types and the bytes in the kernel, and that changes byte order. Offsets
//! and sizes come from `bpf/shared.h` through BTF; nothing here is `unsafe`.

/// The bytes of a shared struct with the given fields. All other bytes are zero, including padding.
macro_rules! bytes_of {
    ($type:ty { $($field:ident: $bytes:expr),* $(,)? }) => {{
        let mut all = [0u8; size_of::<$type>()];
        $(
            let (at, field) = (offset_of!($type, $field), $bytes);
            all[at..at + field.len()].copy_from_slice(&field);
        )*
        all
    }};
}

/// The bytes of one field of a shared struct.
macro_rules! field_of {
    ($all:expr, $type:ty, $field:ident) => {{
        let at = offset_of!($type, $field);
        *$all[at..].first_chunk().expect("invariant: a field lies inside its struct")
    }};
}

pub(crate) mod connections;
mod outside;
mod policies;
mod records;
mod services;

pub(crate) use outside::{
    OutsideBytes, RangeBytes, UplinkBytes, outside, parse_outside, parse_range, parse_uplink, range, ring_words, uplink,
};
pub(crate) use policies::policy;
pub use records::Swept;
pub(crate) use records::{
    FLOW_RECORD_SIZE, SWEEP_RECORD_SIZE, parse_flow_record, parse_outcome, parse_sweep_record, sweep_look,
    sweep_timeouts,
};
pub(crate) use services::{
    AffinityBytes, AffinityKeyBytes, COUNTER_WORDS, Client, FrontendBytes, FrontendKeyBytes, NodeAddrBytes, Policy,
    REFUSED_WORD, SLOT_WORDS, ServiceWords, TRANSLATED_WORD, View, client, frontend, frontend_key, new_udp_socket,
    next_ids_word, node_addr, own_tcp_socket, own_udp_socket, owner_word, parse_client, parse_frontend,
    parse_frontend_key, parse_next_ids, parse_node_addr, parse_owner, parse_policy, parse_slot, parse_view,
    policy_word, slot_words, unused_affinity_key, view_word, was_observed,
};
