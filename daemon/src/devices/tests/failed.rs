use super::*;

fn failure(is_earlier_active: bool) -> PacketFailure {
    PacketFailure { reason: "ENOMEM".into(), is_earlier_active }
}

#[test]
fn only_the_mode_on_makes_a_failure_fatal() {
    for (mode, is_earlier_active, is_ready) in [
        (PacketMode::On, false, false),
        (PacketMode::On, true, true),
        (PacketMode::Auto, false, true),
        (PacketMode::Drain, false, true),
        (PacketMode::Off, false, true),
    ] {
        let check = report(&failure(is_earlier_active), mode).check();
        assert_eq!(check.passed, is_ready, "{mode:?}: {}", check.detail);
        assert!(check.detail.contains("ENOMEM") && check.detail.contains("estart nodelb"), "{}", check.detail);
    }
}

#[tokio::test]
async fn the_report_follows_the_mode() {
    let config = |mode: &str| Arc::new(Config::parse(&format!("[packets]\nmode = \"{mode}\"\n")).unwrap());
    let (sender, receiver) = watch::channel(config("on"));
    let mut reports = start(failure(false), receiver, std::future::pending());
    assert!(!reports.borrow().check().passed);
    sender.send_replace(config("auto"));
    reports.changed().await.unwrap();
    let report = Arc::clone(&reports.borrow());
    assert!(report.check().passed);
    assert_eq!(report.decision.as_ref().unwrap().activity, Activity::Off);
}
