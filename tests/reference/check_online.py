"""CoTracker3 fed chunk by chunk, against the recorded outputs after every chunk."""

from tracker_cases import Case, Tensors, assert_within, build_model

from overt.recipes.cotracker3.windows import sliding_windows


def check_streaming(case: Case, tensors: Tensors) -> None:
    model = build_model(case)
    video = tensors["video"].float()
    spans = sliding_windows(video.shape[1], case["model_kwargs"]["window_len"])
    assert len(spans) == case["chunks"]
    encoded = []
    model.fnet.register_forward_hook(lambda module, x, y: encoded.append(len(y)))

    def check_chunk(number: int) -> None:
        tracks = model(video[:, spans[number]], tensors["queries"], **case["call"])
        assert_within(tracks.tracks_xy, tensors[f"chunk{number}.tracks"], 1e-3)
        assert_within(tracks.visibility, tensors[f"chunk{number}.visibility"], 1e-4)
        assert_within(tracks.confidence, tensors[f"chunk{number}.confidence"], 1e-4)

    model.init_video_online_processing()
    for number in range(len(spans)):
        check_chunk(number)
    assert sum(encoded) == len(video) * video.shape[1]  # no frame twice
    model.init_video_online_processing()  # nothing is left of the first time
    check_chunk(0)
