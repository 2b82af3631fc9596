//! The programs follow the policies that were read last, and connections that these protect end.

use std::sync::Mutex;

use nodelb_core::model::addr::{Family, L4Addr, parse_net};
use nodelb_core::model::ipsec::{PolicyDirection, Selector};

use super::*;

type Answers = Arc<Mutex<Vec<io::Result<Vec<Policy>>>>>;

struct Rig {
    follower: Follower,
    answers: Answers,
    written: Arc<Mutex<Vec<usize>>>,
    ended: Arc<Mutex<Vec<bool>>>,
}

fn to(network: &str) -> Policy {
    let target = parse_net(network).unwrap().into();
    let selector = Selector { target, ..Selector::everything(Family::Ipv4) };
    Policy { direction: PolicyDirection::Out, priority: 0, selector, is_protected: true }
}

fn at(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// One connection to a remote backend, 203.0.113.11.
fn connection() -> ConnectionEnds {
    ConnectionEnds {
        client: at("203.0.113.3:40000/TCP"),
        frontend: at("198.51.100.10:80/TCP"),
        past_stack: Some((at("203.0.113.2:10000/TCP"), at("203.0.113.11:8080/TCP"))),
    }
}

fn rig(current: Option<Policies>, answers: Vec<io::Result<Vec<Policy>>>) -> Rig {
    let answers: Answers = Arc::new(Mutex::new(answers));
    let (written, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let asked = Arc::clone(&answers);
    let (log, over) = (Arc::clone(&written), Arc::clone(&ended));
    let inputs = PolicyInputs {
        read: Arc::new(move || {
            let answer = asked.lock().unwrap().remove(0);
            Box::pin(async move { answer.map(|policies| rules(&policies)) })
        }),
        write: Arc::new(move |policies| {
            log.lock().unwrap().push(policies.rules.len());
            Ok(())
        }),
        end: Arc::new(move |is_over| {
            over.lock().unwrap().push(is_over(&connection()));
            Ok(2)
        }),
        events: None,
        current,
    };
    Rig { follower: Follower::new(inputs), answers, written, ended }
}

impl Rig {
    async fn follow(&mut self) -> Option<String> {
        self.follower.read = None;
        self.follower.follow().await.and_then(|event| event.detail.map(|text| text.to_string()))
    }
}

#[tokio::test]
async fn connections_end_that_a_new_policy_protects() {
    let answers = vec![
        Ok(Vec::new()),
        Ok(vec![to("203.0.113.12/32")]),
        Ok(vec![to("203.0.113.12/32")]),
        Ok(vec![to("203.0.113.11/32")]),
        Ok(vec![to("203.0.113.3/32")]),
        Ok(Vec::new()),
    ];
    let mut rig = rig(None, answers);
    assert_eq!(rig.follow().await, None);
    assert!(rig.follow().await.unwrap().contains("1 connection ended"));
    assert_eq!(rig.follow().await, None, "nothing has changed");
    assert!(rig.follow().await.is_some());
    assert!(rig.follow().await.is_some(), "the answer to the client");
    assert_eq!(rig.follow().await.unwrap(), "no policy of IPsec protects packets");
    assert_eq!(*rig.written.lock().unwrap(), [2, 2, 2, 0]);
    assert_eq!(*rig.ended.lock().unwrap(), [false, true, true]);
}

#[tokio::test]
async fn policies_that_cannot_be_read_stay_as_they_were() {
    let refused = || Err(io::ErrorKind::PermissionDenied.into());
    let mut rig = rig(None, vec![Ok(vec![to("203.0.113.11/32")]), refused(), refused()]);
    assert!(rig.follow().await.is_some());
    assert_eq!((rig.follow().await, rig.follow().await), (None, None));
    assert_eq!(rig.follower.current.rules.len(), 2);
    assert_eq!(*rig.written.lock().unwrap(), [2]);
}

#[tokio::test]
async fn what_was_read_at_the_start_is_not_read_again_at_once() {
    let read = Some(rules(&[to("203.0.113.11/32")]));
    for (current, number) in [(read, 2), (None, 0)] {
        let is_read = current.is_some();
        let mut rig = rig(current, vec![Ok(Vec::new())]);
        assert_eq!(rig.follower.current.rules.len(), number);
        assert_eq!((rig.follower.follow().await.is_none(), rig.follower.read.is_some()), (true, true));
        assert_eq!(rig.answers.lock().unwrap().is_empty(), !is_read);
    }
}
