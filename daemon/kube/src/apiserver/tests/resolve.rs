use super::*;

const TIMEOUT: Duration = Duration::from_secs(5);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn an_ip_address_needs_no_resolver() {
    let address = "192.0.2.1:6443".parse().unwrap();
    assert_eq!(resolve(&address, &[], Duration::ZERO).await, Ok(vec![at("192.0.2.1:6443")]));
}

#[tokio::test]
async fn a_name_that_does_not_resolve_keeps_its_last_answer() {
    let address = "nowhere.invalid:6443".parse().unwrap();
    let last = [at("192.0.2.1:6443")];
    assert_eq!(resolve(&address, &last, TIMEOUT).await, Ok(last.to_vec()));
    let error = resolve(&address, &[], TIMEOUT).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot connect: nowhere.invalid does not resolve: "), "{error}");
}

#[tokio::test]
async fn a_name_of_this_host_resolves() {
    let address = "localhost:6443".parse().unwrap();
    assert!(resolve(&address, &[], TIMEOUT).await.unwrap().iter().all(|at| at.ip().is_loopback()));
}

#[test]
fn answers_are_bounded_and_can_be_connected_to() {
    let many = (0..=255).map(|n| SocketAddr::from(([192, 0, 2, n], 1)));
    assert_eq!(usable(many).unwrap().len(), MOST);
    let same = ["0.0.0.0:1", "224.0.0.1:1", "[::ffff:192.0.2.1]:1", "192.0.2.1:1"].map(at);
    assert_eq!(usable(same.into_iter()), Ok(vec![at("192.0.2.1:1")]));
    assert!(usable([at("[::]:1")].into_iter()).is_err());
}
