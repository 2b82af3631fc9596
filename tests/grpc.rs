//! gRPC streams through the real daemon. Needs root, and `target/debug/nodelb`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop where it is")]

#[path = "netns/grpc.rs"]
mod grpc;
#[expect(dead_code, reason = "the rung netns uses the rest")]
#[path = "netns/host.rs"]
mod host;
mod sandbox;
