"""The page's routes: its files for everybody, and its data."""

from fastapi import APIRouter, FastAPI, Request, Response

from controlplane.api.parts import Parts
from controlplane.errors import ApiError
from controlplane.ui import assets, data


def mount(app: FastAPI, parts: Parts) -> None:
    """Adds `/ui` to the frontend's surface."""
    app.include_router(_files(assets.read()), include_in_schema=False)
    app.include_router(data.router(parts), prefix="/ui/data", include_in_schema=False)


def _files(found: dict[str, assets.Asset]) -> APIRouter:
    router = APIRouter()

    def serve(name: str, request: Request) -> Response:
        asset = found.get(name)
        if asset is None:
            raise ApiError(404, "the page has no such file")
        headers = assets.HEADERS | {"etag": asset.etag}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers=headers, media_type=asset.media_type)

    @router.get("/ui")
    async def page(request: Request) -> Response:
        return serve("index.html", request)

    @router.get("/ui/{name}")
    async def file(name: str, request: Request) -> Response:
        return serve(name, request)

    return router
