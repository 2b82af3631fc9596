//! The objects of the Kubernetes API, and the requests for them. [`splitter`]
//! cuts responses into objects, [`decode`] and [`objects`] decode them, and [`translate`] translates them into the
//! core's model. Objects that are not watched have the types of `k8s-openapi`.

pub mod decode;
pub mod difference;
pub mod objects;
pub mod page;
pub mod printable;
pub mod request;
pub mod splitter;
pub mod translate;
