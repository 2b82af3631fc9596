use super::*;

#[test]
fn the_login_user_is_shown_if_it_is_another_one() {
    let name = |uid| ["root", "alice"][uid as usize].to_owned();
    assert_eq!(text(0, Some(1), name), "root (login alice)");
    assert_eq!(text(0, Some(0), name), "root");
    assert_eq!(text(0, None, name), "root");
    assert_eq!(super::name(0), "root");
    assert_eq!(super::name(4_000_000_000), "user 4000000000");
}

#[tokio::test]
async fn a_process_without_a_login_has_only_its_user() {
    assert_eq!(&*author(Peer { uid: 0, pid: None }).await, "root");
    assert_eq!(&*author(Peer { uid: 0, pid: Some(i32::MAX) }).await, "root");
}
