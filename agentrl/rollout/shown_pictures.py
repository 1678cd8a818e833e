"""The pictures of a finished trajectory, proved against its tokens."""

from __future__ import annotations

import asyncio

from agentrl.chat.vision import PictureInputs
from agentrl.errors import PictureError, TokenStreamError
from agentrl.pictures import pictures_in
from agentrl.rollout.records import TokenArrays
from agentrl.rollout.session import Session


async def shown_pictures(session: Session, tokens: TokenArrays) -> PictureInputs | None:
    """What the trainer's vision tower reads of a trajectory; None: it shows no picture.

    Raises:
        TokenStreamError: the tokens show other pictures than the conversation had.
    """
    vision, trajectory = session.setup.renderer.vision, session.trajectory
    if vision is None:
        return None
    pictures = pictures_in(session.job.sample.prompt) if trajectory is None else trajectory.pictures
    # The last token is predicted, never read: it may be a placeholder, which the model sampled.
    response = tokens.response[:-1] if len(tokens.response) else tokens.response
    try:
        vision.check([*tokens.prompt.tolist(), *response.tolist()], pictures)
    except PictureError as error:
        raise TokenStreamError(f"the finished trajectory: {error}") from error
    return await asyncio.to_thread(vision.inputs, pictures) if pictures else None
