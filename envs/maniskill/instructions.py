"""What each ManiSkill task asks for, in words a language-conditioned policy can use."""

from __future__ import annotations

import re

_TEXTS = {
    "PickCube-v1": "pick up the red cube and hold it at the green goal",
    "PushCube-v1": "push the blue cube to the red and white target",
    "PullCube-v1": "pull the blue cube to the red and white target",
    "StackCube-v1": "stack the red cube on the green cube",
    "PegInsertionSide-v1": "insert the orange end of the peg into the hole of the box",
    "PokeCube-v1": "poke the cube with the peg",
    "LiftPegUpright-v1": "lift the peg and stand it upright",
    "PlaceSphere-v1": "place the sphere into the bin",
    "RollBall-v1": "roll the ball to the red and white target",
    "PlugCharger-v1": "plug the charger into the receptacle",
    "PullCubeTool-v1": "use the tool to pull the cube within reach",
    "PushT-v1": "push the T onto the goal outline",
    "StackPyramid-v1": "stack the blue cube on top of the red and green cubes",
    "PickSingleYCB-v1": "pick up the object and hold it at the green goal",
    "PickClutterYCB-v1": "pick the marked object out of the clutter",
    "AssemblingKits-v1": "put the object into its slot on the kit",
    "TurnFaucet-v1": "turn the faucet on",
    "OpenCabinetDrawer-v1": "open the cabinet drawer",
    "OpenCabinetDoor-v1": "open the cabinet door",
    "TwoRobotPickCube-v1": "hand the cube over and hold it at the green goal",
    "TwoRobotStackCube-v1": "stack the blue cube on the green cube at the target",
    "RotateValveLevel0-v1": "rotate the valve",
    "DrawTriangle-v1": "draw the triangle",
    "DrawSVG-v1": "draw the outline",
    "TableTopFreeDraw-v1": "draw on the canvas",
    "PutCarrotOnPlateInScene-v1": "put carrot on plate",
    "PutSpoonOnTableClothInScene-v1": "put the spoon on the towel",
    "StackGreenCubeOnYellowCubeBakedTexInScene-v1": "stack the green block on the yellow block",
    "PutEggplantInBasketScene-v1": "put eggplant into yellow basket",
}


def instruction(task: str) -> str:
    """The instruction of a task id; one made from the id's words where nobody has written one."""
    if task in _TEXTS:
        return _TEXTS[task]
    words = re.sub(r"-v\d+$", "", task).replace("MS-", "").replace("-", " ")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", words).lower()
