//! Kubernetes objects and what they mean in nodelb's words. The only place where Kubernetes' words are spoken.

pub mod objects;
mod time;
pub mod translate;
