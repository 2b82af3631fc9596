use std::sync::Arc;

use super::*;

const HELD: &str = "kubernetes.namespaces = shopp selects 0 of 12 known services";

async fn asked(accepts: Option<mpsc::Sender<Accept>>, uid: u32, uri: &str) -> Result<String, (u16, String)> {
    let caller = (true, Some(Peer { uid, pid: None }));
    let answer = respond(accepts, caller, (&uri.parse().unwrap(), &HeaderMap::new())).await;
    answer.map_err(|problem| (problem.status.as_u16(), problem.message))
}

#[tokio::test]
async fn the_answer_names_what_was_accepted() {
    let (accepts, mut accepted) = mpsc::channel(1);
    tokio::spawn(async move {
        for ended in [Some(HELD), None] {
            let Accept { by, reply } = accepted.recv().await.unwrap();
            assert_eq!(by, By::Command);
            reply.send(ended.map(Arc::from)).unwrap();
        }
    });
    let text = asked(Some(accepts.clone()), 0, PATH).await;
    assert_eq!(text.as_deref(), Ok(&*format!("accepted: {HELD}; the others are removed")));
    assert_eq!(asked(Some(accepts.clone()), 0, PATH).await.as_deref(), Ok(NOTHING));
    assert_eq!(asked(None, 0, PATH).await.as_deref(), Ok(NOTHING));
}

#[tokio::test]
async fn only_root_accepts() {
    let refused = asked(None, 1_000, PATH).await;
    assert_eq!(refused, Err((403, "only root may accept changes, and this is user 1000: use sudo".into())));
    assert_eq!(asked(None, 0, "/accept?all=true").await.map_err(|(status, _)| status), Err(400));
}
