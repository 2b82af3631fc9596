//! Asks the servers for the answer to one question, one after the other.

use nodelb_core::model::named::Question;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use nodelb_host::register::Register;

use super::ask::{AskTimeouts, Failure, ask};
use super::names::Reply;
use super::report::QueryResult;

/// The number of times that each server is asked before the question has failed.
const ROUNDS: usize = 2;

/// A reply with how each server that was asked responded.
pub(super) struct Asked {
    pub(super) reply: Reply,
    pub(super) tried: Vec<(SocketAddr, Result<QueryResult, Failure>)>,
}

/// Asks the servers in this order until one answers.
pub(super) async fn ask_all(
    question: &Question,
    servers: &[SocketAddr],
    register: &Register,
    limits: AskTimeouts,
) -> Asked {
    let mut tried: Vec<(SocketAddr, Result<QueryResult, Failure>)> = Vec::new();
    for _ in 0..ROUNDS {
        for server in servers {
            match ask(question, *server, register, limits).await {
                Ok(answer) => {
                    tried.push((*server, Ok(QueryResult::of_answer(&answer))));
                    return Asked { reply: Reply::Answered(server.to_string().into(), answer), tried };
                }
                Err(failure) => tried.push((*server, Err(failure))),
            }
        }
    }
    let text = |result: &Result<_, Failure>| result.as_ref().err().map(|failure| failure.text.clone());
    let failed = tried.iter().filter_map(|(server, result)| Some((*server, format!("{server} {}", text(result)?))));
    // The last failure of each server.
    let texts: Vec<String> = failed.collect::<BTreeMap<SocketAddr, String>>().into_values().collect();
    let why = if texts.is_empty() { "no DNS server is known".into() } else { texts.join(", ") };
    Asked { reply: Reply::Failed(why.into()), tried }
}
